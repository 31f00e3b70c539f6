// Curves drawn by plotly in the page's colours.

import { formatNumber } from "./common.js";

export const COLOURS = ["#3b7dd8", "#e07b00", "#2a9d5c", "#c2447c", "#8a63d2", "#a07a2c", "#1aa3a3", "#d1495b", "#6b8e23", "#7f7f7f", "#4f6bed", "#b8860b"];

// plotly is large: it is loaded when there is something to draw, and the page does not wait for it.
let loading = null;
export function plotly() {
  loading ??= new Promise((done, fail) => {
    const script = document.createElement("script");
    script.addEventListener("load", () => done(window.Plotly));
    script.addEventListener("error", () => fail(new Error("cannot load plotly")));
    script.src = "/static/plotly.js";
    document.head.append(script);
  });
  return loading;
}

// plotly interprets some markup in its texts: escape it.
export const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

// Exponential mean, corrected for its start.
export function smoothed(values, weight) {
  let mean = 0, norm = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

const faint = (colour, share) => colour + Math.round(share * 255).toString(16).padStart(2, "0");

// `curves`: name, colour and points of each run.
export function traces(curves, weight) {
  const drawn = [];
  for (const { name, colour, points } of curves) {
    if (!points || !points.steps.length) continue;
    const x = points.steps, line = { color: colour, width: 1.6 };
    if (points.lows) {
      drawn.push({ x: [...x, ...[...x].reverse()], y: [...points.highs, ...[...points.lows].reverse()], fill: "toself", fillcolor: faint(colour, 0.14), line: { width: 0 }, hoverinfo: "skip", mode: "lines" });
    }
    if (weight > 0) drawn.push({ x, y: points.means, line: { color: faint(colour, 0.3), width: 1 }, hoverinfo: "skip", mode: "lines" });
    drawn.push({ x, y: weight > 0 ? smoothed(points.means, weight) : points.means, line, name: literal(name), mode: x.length < 60 ? "lines+markers" : "lines", marker: { size: x.length === 1 ? 8 : 4, color: colour }, hovertemplate: "%{y:.4~g}<extra>%{fullData.name}</extra>" });
  }
  return drawn.map((trace) => ({ type: "scatter", showlegend: false, ...trace }));
}

// Colours of the style sheet, in a form that plotly can read.
function colours() {
  const style = getComputedStyle(document.body);
  const probe = document.createElement("i");
  probe.style.color = "var(--line)";
  document.body.append(probe);
  const line = getComputedStyle(probe).color;
  probe.style.color = "var(--quiet)";
  const quiet = getComputedStyle(probe).color;
  probe.remove();
  return { text: quiet, line, paper: style.backgroundColor };
}

const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

// Differences below this are rounding: such a curve is drawn as the constant that it is. Learning rates are that small.
const NOISE = 1e-6;
const tiny = (name) => /learning_rate|mismatch/.test(name);

/** Ranges where plotly's own would mislead, else null: a constant, and a single step. */
export function ranges(drawn, name = "", zoom = null) {
  const [left, right] = zoom ?? extent(drawn.flatMap((trace) => trace.x));
  const [low, high] = extent(drawn.flatMap((trace) => trace.y));
  const size = Math.max(Math.abs(low), Math.abs(high)), floor = tiny(name) ? 0 : NOISE;
  const constant = high - low <= Math.max(1e-5 * size, floor);
  const around = size > floor ? 0.1 * size : 0.5, middle = size > floor ? (low + high) / 2 : 0;
  return {
    x: zoom ?? (left === right ? [Math.max(left - 1, -0.1), right + 1] : null),
    y: Number.isFinite(low) && constant ? [middle - around, middle + around] : null,
    few: right - left <= 8,
  };
}

const axisRange = (range) => (range ? { range, autorange: false } : { autorange: true });

export function layout({ x, y, few } = {}, { titles = {}, marks = [] } = {}) {
  const { text, line, paper } = colours();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, exponentformat: "e" };
  const title = (name) => (titles[name] ? { title: { text: titles[name], standoff: 6 } } : {});
  return {
    margin: MARGIN,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: text, size: 11 },
    hovermode: "x", hoverlabel: { bgcolor: paper, bordercolor: line, align: "left", namelength: -1 },
    dragmode: "zoom",
    xaxis: { ...axis, ...title("x"), ...axisRange(x), ...(few ? { dtick: 1, tick0: 0 } : {}) },
    yaxis: { ...axis, ...title("y"), fixedrange: true, ...axisRange(y) },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    shapes: marks.map((mark) => ({ type: "line", x0: mark.step, x1: mark.step, y0: 0, y1: 1, yref: "paper", line: { color: mark.colour, width: 1, dash: "dot" } })),
  };
}

// Lines of at most some 60 characters, in plotly's markup.
const wrapped = (text) => literal(text.slice(0, 400)).replace(/(.{40,60}?) /g, "$1<br>");

/** Warnings at their steps: a mark at the foot of the plot, with its text. `marks`: step, text and colour of each. */
export const markTraces = (marks) => (marks.length ? [{
  type: "scatter", mode: "markers", yaxis: "y2", showlegend: false, cliponaxis: false,
  x: marks.map((mark) => mark.step), y: marks.map(() => 0),
  marker: { symbol: "triangle-up", size: 9, color: marks.map((mark) => mark.colour) },
  text: marks.map((mark) => wrapped(mark.text)), hoverinfo: "text",
}] : []);

const MARGIN = { l: 44, r: 10, t: 8, b: 30 };
const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// The same curves as plain SVG, shown until plotly is loaded.
export function sketch(plot, drawn, { x: across, y: up }, marks = []) {
  const { clientWidth: width, clientHeight: height } = plot, { text, line } = colours();
  const xs = drawn.flatMap((trace) => trace.x), ys = drawn.flatMap((trace) => trace.y);
  if (!xs.length) return plot.replaceChildren();
  const [left, right] = across ?? extent(xs), [low, high] = up ?? extent(ys);
  const x = (value) => MARGIN.l + ((value - left) / (right - left || 1)) * (width - MARGIN.l - MARGIN.r);
  const y = (value) => height - MARGIN.b - ((value - low + 0.05 * (high - low)) / (1.1 * (high - low) || 1)) * (height - MARGIN.t - MARGIN.b);
  const picture = svg("svg", { width, height, class: "sketch" });
  for (const value of [low, high]) {
    picture.append(svg("line", { x1: MARGIN.l, x2: width - MARGIN.r, y1: y(value), y2: y(value), stroke: line }));
    picture.append(svg("text", { x: MARGIN.l - 4, y: y(value) + 4, "text-anchor": "end", "font-size": 11, fill: text }, formatNumber(value)));
  }
  for (const [value, anchor] of [[left, "start"], [right, "end"]]) {
    picture.append(svg("text", { x: x(value), y: height - MARGIN.b + 16, "text-anchor": anchor, "font-size": 11, fill: text }, formatNumber(Math.round(value))));
  }
  for (const mark of marks.filter(({ step }) => left <= step && step <= right)) picture.append(svg("line", { x1: x(mark.step), x2: x(mark.step), y1: MARGIN.t, y2: height - MARGIN.b, stroke: mark.colour, "stroke-dasharray": "1 3" }));
  for (const trace of drawn) {
    const points = trace.x.map((at, place) => `${x(at).toFixed(1)},${y(trace.y[place]).toFixed(1)}`).join(" ");
    picture.append(svg("polyline", { points, fill: trace.fillcolor ?? "none", stroke: trace.fill ? "none" : trace.line.color, "stroke-width": trace.line.width }));
    if (trace.x.length === 1) picture.append(svg("circle", { cx: x(trace.x[0]), cy: y(trace.y[0]), r: 2.5, fill: trace.line.color }));
  }
  plot.replaceChildren(picture);
}

export const CONFIG = { responsive: true, displayModeBar: false, doubleClick: false };

export const onColours = (work) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", work);
