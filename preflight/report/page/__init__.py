"""One run as one HTML file that needs no network: the only place that imports jinja2."""
