// Curves of one or several runs, one chart per metric. Only visible charts are loaded and drawn.

import { address, attempt, byId, debounce, fetchData, link, make, poll, showMessage, state, verdictClass } from "./common.js";
import { morph } from "./morph.js";
import { notifies, observe } from "./notify.js";
import { COLOURS, CONFIG, layout, markTraces, onColours, plotly, ranges, sketch, traces } from "./plots.js";
import { configs, items, noticeList, sideBySide } from "./view_tables.js";

const names = address.all("run");
const colour = Object.fromEntries(names.map((name, place) => [name, COLOURS[place % COLOURS.length]]));
const charts = new Map(); // by metric: its card, its plot, its points
const visible = new Set();
let statuses = [], notes = [], meanings = {}, seen = "", marks = [];

const smoothing = () => Number(byId("smooth").value);
const range = () => (address.get("from") ? [Number(address.get("from")), Number(address.get("to"))] : null);

async function refresh(which = [...visible]) {
  if (!which.length) return;
  const zoom = range();
  const answer = await fetchData("curves", { run: names, name: which, from: zoom?.[0], to: zoom?.[1] });
  for (const name of which) {
    const chart = charts.get(name);
    if (chart) chart.points = Object.fromEntries(names.map((run) => [run, answer.runs[run]?.[name]]));
  }
  await Promise.all(which.map(draw));
  if (!window.Plotly) {
    await new Promise((seen) => requestAnimationFrame(() => setTimeout(seen)));
    performance.mark("drawn"); // loading plotly keeps a browser busy for seconds, with the curves in view
    await plotly();
    await drawAll();
  }
}

// First as plain SVG; plotly is loaded when all visible charts are drawn.
async function draw(name) {
  const chart = charts.get(name);
  if (!chart?.points) return;
  const curves = names.map((run) => ({ name: run, colour: colour[run], points: chart.points[run] }));
  // Held-out metrics have few points and are not smoothed.
  const drawn = traces(curves, name.startsWith("eval/") ? 0 : smoothing());
  const Plotly = window.Plotly, axes = ranges(drawn, name, range());
  if (!Plotly) {
    sketch(chart.plot, drawn, axes, marks);
  } else {
    if (!chart.listens) chart.plot.replaceChildren();
    await Plotly.react(chart.plot, [...drawn, ...markTraces(marks)], layout(axes, { marks }), CONFIG);
  }
  chart.plot.dataset.marks = marks.length;
  chart.plot.dataset.points = curves.reduce((sum, { points }) => sum + (points?.steps.length ?? 0), 0);
  if (Plotly && !chart.listens) {
    chart.listens = true;
    chart.plot.on("plotly_relayout", zoomed);
    chart.plot.on("plotly_doubleclick", () => zoom(null));
  }
}

async function drawAll() {
  for (const name of charts.keys()) {
    await attempt(() => draw(name));
    await new Promise((on) => setTimeout(on)); // keeps the page responsive
  }
}

const redraw = debounce(drawAll, 40);

function zoomed(change) {
  const first = change["xaxis.range[0]"], last = change["xaxis.range[1]"];
  if (first === undefined) return;
  const now = range();
  if (!now || Math.abs(now[0] - first) > 1e-6 || Math.abs(now[1] - last) > 1e-6) zoom([first, last]);
}

function zoom(window) {
  address.set({ from: window ? Number(window[0].toFixed(2)) : null, to: window ? Number(window[1].toFixed(2)) : null });
  for (const chart of charts.values()) chart.points = null;
  showWindow();
  attempt(refresh);
}

function showWindow() {
  const now = range();
  byId("whole").hidden = !now;
  byId("window").textContent = now ? `steps ${Math.ceil(now[0])} to ${Math.floor(now[1])}` : "drag over a chart to zoom";
}

const loadVisible = debounce(async () => {
  const missing = [...visible].filter((name) => !charts.get(name).points);
  await refresh(missing);
}, 60);

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visible.add(target.dataset.name);
    else visible.delete(target.dataset.name);
  }
  loadVisible();
}, { rootMargin: "200px" });

function card(name) {
  const plot = make("div", { class: "plot" });
  const element = make("section", { class: "chart", "data-name": name }, make("h2", { title: meanings[name] }, name), plot);
  charts.set(name, { element, plot, points: null });
  watcher.observe(element);
  return element;
}

// As in the address, else the default.
const wasOpen = (title, open) => address.all("open").includes(title) || (open && !address.all("closed").includes(title));

function group({ title, names: metrics, open }) {
  const details = make("details", { class: "group" }, make("summary", {}, title, make("span", { class: "quiet" }, ` ${metrics.length}`)));
  details.restore = () => { details.open = wasOpen(title, open); };
  details.restore();
  details.append(make("div", { class: "charts" }, ...metrics.map(card)));
  details.addEventListener("toggle", () => {
    if (byId("filter").value) return; // opened by the filter
    const change = (of, there) => [...address.all(of).filter((one) => one !== title), ...(there ? [title] : [])];
    address.set({ open: change("open", details.open && !open), closed: change("closed", !details.open && open) });
  });
  return details;
}

function filter() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const details of document.querySelectorAll(".group")) {
    let some = false;
    for (const element of details.querySelectorAll(".chart")) {
      const fits = words.every((word) => element.dataset.name.toLowerCase().includes(word));
      element.hidden = !fits;
      some ||= fits;
    }
    details.hidden = !some;
    if (words.length) details.open = some;
    else details.restore();
  }
}

function legend() {
  morph(byId("legend"), ...names.map((name) => {
    const run = statuses.find((one) => one.name === name) ?? { state: "", step: 0, steps: 0 };
    return make("li", { "data-run": name, "data-key": name },
      make("span", {}, make("i", { style: `background: ${colour[name]}` }), make("b", {}, name)), state(run.state), make("span", {}, `${run.step} / ${run.steps}`),
      run.error ? make("span", { class: "bad" }, run.error) : null,
      run.outcome ? make("span", { class: `verdict ${verdictClass(run.outcome)}`, title: run.outcome.next.join("\n") }, [run.outcome.text, run.outcome.best_text ? `best: ${run.outcome.best_text}` : ""].filter(Boolean).join("; ")) : null,
      make("a", { href: link("/samples", { run: name }), "aria-label": `samples of ${name}` }, "samples"));
  }));
}

// Warnings are marked on the curves; notes are only listed.
async function notices() {
  const answer = await fetchData("notices", { run: names });
  const all = Object.entries(answer.runs).flatMap(([run, given]) => given.map((one) => ({ ...one, run, colour: colour[run] })));
  marks = all.filter((one) => one.kind === "warning").slice(-50);
  noticeList(all, names.length > 1, (step) => zoom([Math.max(0, step - 25), step + 25]));
}

// A run may log new metrics: the groups are rebuilt only then.
async function update() {
  statuses = (await fetchData("runs", { run: names })).runs;
  observe(statuses);
  legend();
  sideBySide(names.map((name) => statuses.find((run) => run.name === name)).filter(Boolean));
  const steps = statuses.map((run) => `${run.name} ${run.step} ${run.changed} ${run.warnings}`).join("\n");
  if (steps !== seen) {
    await notices();
    const answer = await fetchData("names", { run: names });
    notes = answer.notes;
    meanings = answer.meanings;
    const known = [...charts.keys()].sort().join("\n"), there = answer.groups.flatMap((one) => one.names).sort().join("\n");
    if (known !== there) {
      watcher.disconnect();
      charts.clear();
      visible.clear();
      byId("groups").replaceChildren(...answer.groups.map(group));
      filter();
    } else {
      await refresh();
    }
    byId("items").hidden = !answer.groups.some((one) => one.title.startsWith("Rubric: "));
    if (byId("items").open) await items(names);
    seen = steps;
  }
  showMessage(notes.join("; ") || (charts.size ? "" : "no step has been logged yet"));
}

byId("smooth").value = address.get("smooth", "0.6");
byId("smoothness").textContent = smoothing().toFixed(2);
byId("smooth").addEventListener("input", () => {
  byId("smoothness").textContent = smoothing().toFixed(2);
  address.set({ smooth: byId("smooth").value });
  redraw();
});
byId("filter").value = address.get("filter");
byId("filter").addEventListener("input", () => {
  address.set({ filter: byId("filter").value });
  filter();
});
byId("whole").addEventListener("click", () => zoom(null));
byId("items").addEventListener("toggle", () => attempt(() => items(names)));
onColours(redraw);
showWindow();
attempt(() => configs(names));
poll(update, 2, notifies);
