// Curves drawn by plotly, in the page's own colours.

import { byId } from "./common.js";

export const COLOURS = ["#3b7dd8", "#e07b00", "#2a9d5c", "#c2447c", "#8a63d2", "#a07a2c", "#1aa3a3", "#d1495b", "#6b8e23", "#7f7f7f", "#4f6bed", "#b8860b"];

export function plotly() {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  return new Promise((done) => byId("plotly").addEventListener("load", () => done(window.Plotly)));
}

// plotly reads some markup in its texts: a name is to be seen as it is.
export const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

// An exponential mean, corrected for its start.
export function smoothed(values, weight) {
  let mean = 0, norm = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

const faint = (colour, share) => colour + Math.round(share * 255).toString(16).padStart(2, "0");

// `curves`: of each run its name, colour and points.
export function traces(curves, weight) {
  const drawn = [];
  for (const { name, colour, points } of curves) {
    if (!points || !points.steps.length) continue;
    const x = points.steps, line = { color: colour, width: 1.6 };
    if (points.lows) {
      drawn.push({ x: [...x, ...[...x].reverse()], y: [...points.highs, ...[...points.lows].reverse()], fill: "toself", fillcolor: faint(colour, 0.14), line: { width: 0 }, hoverinfo: "skip", mode: "lines" });
    }
    if (weight > 0) drawn.push({ x, y: points.means, line: { color: faint(colour, 0.3), width: 1 }, hoverinfo: "skip", mode: "lines" });
    drawn.push({ x, y: weight > 0 ? smoothed(points.means, weight) : points.means, line, name: literal(name), mode: x.length < 60 ? "lines+markers" : "lines", marker: { size: 4, color: colour }, hovertemplate: "%{y:.4~g}<extra>" + literal(name) + "</extra>" });
  }
  return drawn.map((trace) => ({ type: "scatter", showlegend: false, ...trace }));
}

// A colour that the style sheet gives to something in the page, as plotly can read it.
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

export function layout(range, titles = {}) {
  const { text, line, paper } = colours();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const title = (name) => (titles[name] ? { title: { text: titles[name], standoff: 6 } } : {});
  return {
    margin: { l: 44, r: 10, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: text, size: 11 },
    hovermode: "x", hoverlabel: { bgcolor: paper, bordercolor: line },
    dragmode: "zoom",
    xaxis: { ...axis, ...title("x"), ...(range ? { range, autorange: false } : { autorange: true }) },
    yaxis: { ...axis, ...title("y"), fixedrange: true, autorange: true },
  };
}

export const CONFIG = { responsive: true, displayModeBar: false, doubleClick: false };

export const onColours = (work) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", work);
