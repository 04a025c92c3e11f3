// Colours. Lightness alone carries the order, so that they can be told apart in grey and by colour-blind readers: the further from the ground, the slower.
const STOPS = {
  light: [[1, "#e3ebf3"], [0.92, "#d7dfe0"], [0.85, "#f3cf7c"], [0.7, "#e28b35"], [0.5, "#ad3f1f"], [0.25, "#5c1020"], [0, "#2d0612"]],
  dark: [[1, "#243d54"], [0.92, "#2f4757"], [0.85, "#6d5320"], [0.7, "#b8722a"], [0.5, "#efa94a"], [0.25, "#ffe08a"], [0, "#fff6d6"]],
};
// of rates nobody judges: a calm scale, the fuller the faster
const RATES = {
  light: [[1, "#0b5563"], [0.75, "#2f8496"], [0.5, "#72b3bf"], [0.25, "#b5d8dd"], [0, "#e6f2f3"]],
  dark: [[1, "#c8f0f4"], [0.75, "#7cc4cf"], [0.5, "#3f8d9a"], [0.25, "#22555f"], [0, "#172f36"]],
};
const FAIL_COLOUR = { ratio: { light: "#2347d6", dark: "#6f9bff" }, rate: { light: "#c0351d", dark: "#ff8a6b" } };
const stopsOf = scale => (scale === "ratio" ? STOPS : RATES)[theme()];
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const paper = matchMedia("print");
const theme = () => dark.matches && !paper.matches ? "dark" : "light";
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const parts = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));

// 0..1 -> red, green, blue
function shade(value, stops) {
  if (value >= stops[0][0]) return parts(stops[0][1]);
  for (let i = 1; i < stops.length; i++) {
    if (value >= stops[i][0]) {
      const share = (value - stops[i][0]) / (stops[i - 1][0] - stops[i][0]), [lower, upper] = [parts(stops[i][1]), parts(stops[i - 1][1])];
      return lower.map((part, at) => Math.round(part + (upper[at] - part) * share));
    }
  }
  return parts(stops[stops.length - 1][1]);
}

// What a cell's figure is on the scale: 1 as the reference, or the fastest; null: it has no place there.
function onScale(pairs, scale, rate, ratio) {
  if (scale === "ratio") return Number.isNaN(ratio) ? null : Math.min(ratio, 1);
  const span = Math.log(pairs.fastest / pairs.slowest);
  return span > 1e-9 ? Math.max(0, Math.min(1, Math.log(rate / pairs.slowest) / span)) : 1;
}

// Black or white, whichever reads better on it.
const inkOn = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151a" : "#ffffff";

function legend(element, pairs, scale) {
  const strip = make("canvas", { width: 176, height: 14 }), pen = strip.getContext("2d"), stops = stopsOf(scale);
  for (let x = 0; x < 176; x++) { pen.fillStyle = `rgb(${shade(x / 175, stops)})`; pen.fillRect(x, 0, 1, 14); }
  const swatch = (kind, text, colour) => {
    const box = make("i", { class: "swatch " + kind });
    if (colour) box.style.background = colour;
    return make("span", {}, box, text);
  };
  const [low, high] = scale === "ratio" ? ["0 %", "100 % or more of the reference"] : [rateText(pairs.slowest), rateText(pairs.fastest) + ", logarithmic"];
  element.replaceChildren(make("span", {}, low, strip, high), swatch("", "failed, \u00d7", FAIL_COLOUR[scale][theme()]), swatch("hatch", "not measured"));
  if (scale === "ratio" && run.routes.some(route => !route[1])) element.append(swatch("", "measured, no reference", css("--skip-bg")));
}
