// The list of runs, refreshed every two seconds.

import { address, ago, byId, fetchData, formatNumber, link, make, poll, showMessage, state } from "./common.js";

let runs = [];
const picked = new Set(address.all("picked"));
const MOST = 12;

function draw() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = runs.filter((run) => {
    const text = [run.name, run.recipe, run.method, run.state].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  byId("runs").replaceChildren(...shown.map(row));
  byId("counted").textContent = runs.length ? `${shown.length} of ${runs.length} runs` : "no runs yet";
  byId("together").disabled = picked.size < 1;
  byId("together").textContent = picked.size > 1 ? `Show ${picked.size} together` : "Show together";
}

function row(run) {
  const box = make("input", { type: "checkbox", "aria-label": `pick ${run.name}` });
  box.checked = picked.has(run.name);
  box.disabled = !box.checked && picked.size >= MOST;
  box.addEventListener("change", () => {
    if (box.checked) picked.add(run.name);
    else picked.delete(run.name);
    address.set({ picked: [...picked] });
    draw();
  });
  const done = make("i");
  done.style.width = `${run.steps ? Math.min(100, (100 * run.step) / run.steps) : 0}%`;
  return make("tr", { "data-run": run.name },
    make("td", {}, box),
    make("td", { class: "wide" }, make("a", { href: link("/curves", { run: run.name }) }, run.name)),
    make("td", {}, state(run.state), run.error ? make("span", { class: "why bad" }, run.error) : null),
    make("td", {}, `${run.step} / ${run.steps}`, make("span", { class: "bar" }, done)),
    make("td", { class: "metrics" }, ...run.metrics.map(({ label, value, meaning }) => make("span", { title: meaning }, `${label} `, make("b", {}, formatNumber(value))))),
    make("td", {}, run.method),
    make("td", { class: "quiet" }, ago(run.changed)),
    make("td", {}, make("a", { href: link("/samples", { run: run.name }) }, "samples")));
}

byId("search").value = address.get("search");
byId("search").addEventListener("input", () => {
  address.set({ search: byId("search").value });
  draw();
});
byId("together").addEventListener("click", () => { location.href = link("/curves", { run: [...picked] }); });

poll(async () => {
  runs = (await fetchData("runs")).runs;
  for (const name of picked) if (!runs.some((run) => run.name === name)) picked.delete(name);
  showMessage("");
  draw();
}, 2);
