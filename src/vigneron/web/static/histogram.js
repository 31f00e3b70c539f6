// A small histogram as plain SVG.

import { make } from "./common.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 260, HEIGHT = 60;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** `data`: low, high, counts of equal bins, mean; null draws nothing. */
export function histogram(title, data, format) {
  if (!data) return null;
  const most = Math.max(...data.counts), width = WIDTH / data.counts.length;
  const place = (value) => (data.high > data.low ? (value - data.low) / (data.high - data.low) : 0.5) * WIDTH;
  const edge = (bin) => format(data.low + ((data.high - data.low) * bin) / data.counts.length);
  const bars = data.counts.map((count, bin) => svg("rect", { x: bin * width + 0.5, width: Math.max(1, width - 1), y: HEIGHT * (1 - count / most), height: (HEIGHT * count) / most },
    svg("title", {}, data.high > data.low ? `${edge(bin)} to ${edge(bin + 1)}: ${count}` : `${format(data.low)}: ${count}`)));
  const words = data.high > data.low ? `from ${format(data.low)} to ${format(data.high)}, mean ${format(data.mean)}` : `all ${format(data.low)}`;
  return make("figure", { class: "histogram", "data-key": title },
    make("figcaption", {}, make("b", {}, title), ` ${words}`),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${words}`, preserveAspectRatio: "none" },
      ...bars, svg("line", { x1: place(data.mean), x2: place(data.mean), y1: 0, y2: HEIGHT })));
}
