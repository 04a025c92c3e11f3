// Figures as the terminal shows them, and small helpers for elements.
const digits = v => Math.abs(v) >= 99.95 ? v.toFixed(0) : Math.abs(v) >= 9.995 ? v.toFixed(1) : Math.abs(v) >= 0.9995 ? v.toFixed(2) : v.toFixed(3);
const rateText = v => v === null ? "failed" : v >= 1e8 ? digits(v / 1e9) + " GB/s" : v >= 1e5 ? digits(v / 1e6) + " MB/s" : v >= 100 ? digits(v / 1e3) + " kB/s" : v.toFixed(0) + " B/s";
const percent = v => v >= 0.995 && v < 0.9995 ? "99.9 %" : (v * 100).toFixed(0) + " %";
const byId = id => document.getElementById(id);

// An element; texts become text nodes, never markup.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null));
  return element;
}
