// The list of runs, refreshed every two seconds. Pinned runs come first, and can be shown together.

import { address, ago, byId, fetchData, formatNumber, link, make, poll, remembered, showMessage, state, verdictClass } from "./common.js";
import { morph } from "./morph.js";
import { notifies, observe } from "./notify.js";

let runs = [];
const inAddress = address.all("pinned");
const pinned = new Set(inAddress.length ? inAddress : remembered.get("pinned"));
const MOST = 12;

function draw() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = runs.filter((run) => {
    const text = [run.name, run.recipe, run.method, run.state].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  shown.sort((one, other) => pinned.has(other.name) - pinned.has(one.name)); // stable
  morph(byId("runs"), ...shown.map(row));
  byId("counted").textContent = runs.length ? `${shown.length} of ${runs.length} runs` : "no runs yet";
  byId("together").disabled = pinned.size < 1;
  byId("together").textContent = pinned.size > 1 ? `Show ${pinned.size} together` : "Show together";
}

function pin(name, on) {
  if (on) pinned.add(name);
  else pinned.delete(name);
  address.set({ pinned: [...pinned] });
  remembered.set("pinned", [...pinned]);
  draw();
}

function row(run) {
  const box = make("input", { type: "checkbox", "aria-label": `pin ${run.name}` });
  box.checked = pinned.has(run.name);
  box.disabled = !box.checked && pinned.size >= MOST;
  box.addEventListener("change", () => pin(run.name, box.checked));
  const share = run.steps ? Math.min(100, (100 * run.step) / run.steps) : 0;
  return make("tr", { "data-run": run.name, "data-key": run.name },
    make("td", { class: "pin" }, make("label", {}, box)),
    make("td", { class: "wide" }, make("a", { href: link("/curves", { run: run.name }) }, run.name)),
    make("td", { class: "how" }, state(run.state), run.error ? make("span", { class: "why bad" }, run.error) : null,
      run.warnings ? make("span", { class: "why warned", title: run.warning }, `${run.warnings} warning${run.warnings === 1 ? "" : "s"}`) : null),
    make("td", { class: "step" }, `${run.step} / ${run.steps}`, make("span", { class: "bar" }, make("i", { style: `width: ${share}%` }))),
    make("td", {}, run.outcome?.cell ? make("span", { class: `why ${verdictClass(run.outcome)}`, title: run.outcome.text }, `${run.outcome.label} ${run.outcome.cell}`) : null, make("div", { class: "metrics" }, ...run.metrics.map(({ label, value, meaning }) => make("span", { title: meaning }, `${label} `, make("b", {}, formatNumber(value)))))),
    make("td", {}, run.method),
    make("td", { class: "quiet" }, ago(run.changed)),
    make("td", {}, make("a", { href: link("/samples", { run: run.name }), "aria-label": `samples of ${run.name}` }, "samples")));
}

byId("search").value = address.get("search");
byId("search").addEventListener("input", () => {
  address.set({ search: byId("search").value });
  draw();
});
byId("together").addEventListener("click", () => { location.href = link("/curves", { run: [...pinned] }); });

poll(async () => {
  runs = (await fetchData("runs")).runs;
  for (const name of pinned) if (!runs.some((run) => run.name === name)) pinned.delete(name);
  observe(runs);
  showMessage("");
  draw();
}, 2, notifies);
