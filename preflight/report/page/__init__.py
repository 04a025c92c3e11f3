"""One run as one HTML file that needs no network: the only place that imports jinja2.

No plotting library draws its matrices. Measured for 512 x 512 squares with hover in Chromium: plotly 6.2 MB and 1.9 to 2.4 s until ready, Bokeh's image glyph 2.7 MB and 2.7 s, the canvas of matrix.js with the same
figures 1.4 MB, nearly all of it data, and 0.3 to 0.5 s; only the last one allows a content policy without inline evaluation, and reads well in the dark, on paper and by keyboard.
"""
