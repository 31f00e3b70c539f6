// Tables below the curves: warnings, runs side by side with the differences of their configs, rubric items.

import { byId, fetchData, formatNumber, make, state, verdictClass } from "./common.js";
import { morph } from "./morph.js";

/** Warnings first opened; `go(step)` shows the curves around a step. */
export function noticeList(notices, several, go) {
  const warnings = notices.filter((one) => one.kind === "warning").length, box = byId("notices");
  if (box.hidden && warnings) box.open = true;
  box.hidden = !notices.length;
  const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  box.firstElementChild.textContent = [warnings ? count(warnings, "warning") : "", notices.length - warnings ? count(notices.length - warnings, "note") : ""].filter(Boolean).join(", ");
  const ordered = [...notices].sort((one, other) => (other.kind === "warning") - (one.kind === "warning") || other.step - one.step);
  morph(box.lastElementChild, ...ordered.map((one) => make("li", { class: one.kind, "data-key": `${one.run} ${one.step} ${one.text}` },
    one.step ? make("button", { class: "link", onclick: () => go(one.step) }, `step ${one.step}`) : make("span", { class: "quiet" }, "start"),
    several ? make("b", {}, one.run) : null,
    make("span", { class: one.kind === "warning" ? "warned" : "" }, one.text))));
}

let differing = null, shown = [];

/** State and last metrics of each run in a column, then the config keys in which they differ. */
export function sideBySide(runs) {
  shown = runs;
  if (runs.length < 2 || differing === null) return;
  const labels = [...new Map(runs.flatMap((run) => run.metrics.map(({ label, meaning }) => [label, meaning])))];
  const values = (label) => runs.map((run) => run.metrics.find((one) => one.label === label)?.value ?? null);
  const line = (head, cells, kind = "") => make("tr", {}, head, ...cells.map((cell) => make("td", { class: kind }, cell)));
  const named = (name, title) => make("th", { scope: "row", title }, name);
  const rows = [
    ["state", runs.map((run) => state(run.state))],
    ["step", runs.map((run) => `${run.step} / ${run.steps}`)],
    ...(runs.some((run) => run.outcome?.cell) ? [["held out", runs.map((run) => make("span", { class: verdictClass(run.outcome), title: run.outcome?.text }, run.outcome?.cell || "–"))]] : []),
    ["warnings", runs.map((run) => String(run.warnings))],
    ...labels.map(([label, meaning]) => [label, values(label).map(formatNumber), meaning]),
  ];
  byId("together").hidden = false;
  morph(byId("together").lastElementChild, make("table", { class: "differences" },
    make("thead", {}, make("tr", {}, make("td", {}), ...runs.map((run) => make("th", { scope: "col" }, run.name)))),
    make("tbody", {}, ...rows.map(([head, cells, meaning]) => line(named(head, meaning), cells))),
    make("tbody", { class: "keys" }, ...differing.map(({ key, values: texts }) => line(named(key), texts, "text")))),
  differing.length ? null : make("p", { class: "quiet" }, "Their configs do not differ."));
}

export async function configs(names) {
  const { runs, differences, texts } = await fetchData("configs", { run: names });
  differing = differences;
  sideBySide(shown);
  byId("configs").lastElementChild.replaceChildren(...runs.flatMap((run, place) => [make("h2", {}, run), make("pre", { tabindex: 0 }, texts[place])]));
}

export async function items(names) {
  const tables = await Promise.all(names.map(async (run) => [run, (await fetchData("items", { run })).items]));
  const heads = ["category", "item", "flow", "weight", "score, first", "last", "spread", "confidence", "failed", "weak"];
  byId("items").lastElementChild.replaceChildren(...tables.filter(([, rows]) => rows.length).flatMap(([run, rows]) => [
    make("h2", {}, run),
    make("table", { class: "items" }, make("tr", {}, ...heads.map((head) => make("th", {}, head))),
      ...rows.map((row) => make("tr", {}, ...[row.category, row.item, row.flow ?? "–", formatNumber(row.weight), formatNumber(row.score.first), formatNumber(row.score.last), formatNumber(row.spread), formatNumber(row.confidence), formatNumber(row.failed)].map((cell) => make("td", {}, cell)), make("td", { class: "bad" }, row.weak.join(", "))))),
  ]));
}
