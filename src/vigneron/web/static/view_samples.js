// Samples of one run by step. Without a step in the address, the newest step is shown and followed.

import { conversation } from "./conversation.js";
import { address, attempt, byId, debounce, fetchData, formatNumber, link, make, poll, showMessage } from "./common.js";

const run = address.get("run");
const LONG = 1200;
let steps = null, before = "";

function text(value) {
  const string = String(value ?? "");
  if (string.length <= LONG) return make("td", { class: "text" }, string);
  return make("td", { class: "text" }, make("details", {}, make("summary", {}, `${string.slice(0, 400)} … (${string.length} characters)`), string));
}

const line = (name, value) => make("tr", {}, make("th", {}, name), text(value));

function parts(extras) {
  const plain = Object.entries(extras).filter(([name, value]) => name !== "rubric" && value !== null);
  if (!plain.length) return null;
  const shown = plain.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, typeof value === "object" ? JSON.stringify(value) : formatNumber(value))));
  return make("tr", {}, make("th", {}, "parts"), make("td", { class: "parts" }, ...shown));
}

function verdicts(rubric) {
  if (!rubric || typeof rubric !== "object" || !rubric.items) return null;
  const heads = ["item", "score", "confidence", "critique", "reasoning"];
  return make("table", { class: "judged" }, make("tr", {}, ...heads.map((head) => make("th", {}, head))),
    ...Object.entries(rubric.items).map(([name, one]) => make("tr", {},
      make("td", {}, name), make("td", {}, formatNumber(one.score)), make("td", {}, one.score === null ? "–" : formatNumber(one.confidence)),
      text(one.critique), text(one.score === null || one.score === undefined ? `no score: ${one.why ?? "no reason given"} ${one.reasoning ?? ""}` : one.reasoning))));
}

function card(sample) {
  const right = { true: make("span", { class: "good" }, "right"), false: make("span", { class: "bad" }, "wrong") }[sample.correct] ?? null;
  const rubric = sample.extras.rubric;
  return make("section", { class: "sample", "data-sample": sample.sample },
    make("p", { class: "head" },
      make("b", {}, `#${sample.sample}`),
      make("span", {}, "reward ", make("b", {}, sample.reward === null ? "missing" : formatNumber(sample.reward))),
      sample.advantage === null ? null : make("span", {}, "advantage ", make("b", {}, formatNumber(sample.advantage))),
      right,
      sample.truncated ? make("span", { class: "bad" }, "truncated") : null,
      sample.conversation?.error ? make("span", { class: "bad" }, "environment failed") : null,
      rubric?.category ? make("span", {}, `category ${rubric.category}`) : null,
      rubric?.version ? make("span", { class: "quiet" }, `rubric ${rubric.version}`) : null,
      make("a", { href: link("/history", { run, kind: sample.kind, step: sample.step, sample: sample.sample }) }, "over the steps")),
    make("table", {}, line("prompt", sample.prompt),
      sample.conversation ? make("tr", {}, make("th", {}, "conversation"), make("td", {}, conversation(sample.conversation))) : line("completion", sample.completion),
      sample.answer === null ? null : line("reference answer", sample.answer), parts(sample.extras)),
    verdicts(rubric));
}

async function update() {
  const query = Object.fromEntries(["kind", "step", "which", "category", "sort", "search", "offset"].map((name) => [name, address.get(name)]));
  const answer = await fetchData("samples", { run, ...query });
  const same = JSON.stringify(answer);
  if (same === before) return showMessage("");
  before = same;
  steps = answer.steps;
  for (const option of byId("kind").options) option.disabled = !answer.kinds.includes(option.value);
  if (!answer.found) {
    byId("samples").replaceChildren();
    byId("counted").textContent = "";
    return showMessage(answer.kinds.length ? "no samples of this kind" : "the run has no samples");
  }
  const { samples, count, categories } = answer.found;
  const offset = Number(query.offset || 0);
  byId("slider").min = steps.first;
  byId("slider").max = steps.last;
  byId("slider").value = steps.at;
  if (document.activeElement !== byId("step")) byId("step").value = steps.at;
  byId("before").disabled = steps.before === null;
  byId("after").disabled = steps.after === null;
  byId("newest").disabled = !query.step;
  byId("of-category").hidden = !categories.length;
  const all = [make("option", { value: "" }, "all"), ...categories.map((name) => make("option", { value: name }, name))];
  byId("category").replaceChildren(...all);
  byId("category").value = query.category;
  byId("counted").textContent = count ? `${offset + 1} to ${offset + samples.length} of ${count} samples of step ${steps.at}` : `no matching sample in step ${steps.at}`;
  byId("previous-page").hidden = offset === 0;
  byId("next-page").hidden = offset + samples.length >= count;
  byId("previous-page").onclick = () => go({ offset: Math.max(0, offset - answer.page) || null });
  byId("next-page").onclick = () => go({ offset: offset + answer.page });
  byId("samples").replaceChildren(...samples.map(card));
  showMessage("");
}

function go(changes) {
  address.set({ offset: null, ...changes });
  attempt(update);
}

for (const name of ["kind", "which", "sort"]) {
  byId(name).value = address.get(name, byId(name).options[0].value);
  byId(name).addEventListener("change", () => go({ [name]: byId(name).value, ...(name === "kind" ? { category: null } : {}) }));
}
byId("category").addEventListener("change", () => go({ category: byId("category").value }));
byId("search").value = address.get("search");
byId("search").addEventListener("input", debounce(() => go({ search: byId("search").value })));
byId("slider").addEventListener("input", debounce(() => go({ step: byId("slider").value }), 80));
byId("step").addEventListener("change", () => go({ step: byId("step").value }));
byId("before").addEventListener("click", () => go({ step: steps.before }));
byId("after").addEventListener("click", () => go({ step: steps.after }));
byId("newest").addEventListener("click", () => go({ step: null }));
byId("curves").href = link("/curves", { run });
poll(update, 3);
