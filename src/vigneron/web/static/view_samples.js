// Samples of one run by step, in groups of one prompt. Without a step in the address, the newest step is shown and followed.

import { address, attempt, byId, debounce, fetchData, formatNumber, link, make, poll, showMessage } from "./common.js";
import { histogram } from "./histogram.js";
import { morph } from "./morph.js";
import { groupsOf, group } from "./sample_cards.js";

const run = address.get("run");
const FILTERS = ["kind", "step", "which", "category", "origin", "reward_from", "reward_to", "sort", "search", "offset"];
let steps = null, before = "";

function choices(name, values, chosen) {
  byId(`of-${name}`).hidden = !values.length && !chosen;
  const all = [...new Set([...values, ...(chosen ? [chosen] : [])])];
  morph(byId(name), make("option", { value: "" }, "all"), ...all.map((value) => make("option", { value }, value)));
  byId(name).value = chosen;
}

async function update() {
  const query = Object.fromEntries(FILTERS.map((name) => [name, address.get(name)]));
  const answer = await fetchData("samples", { run, ...query });
  const same = JSON.stringify(answer);
  if (same === before) return showMessage("");
  before = same;
  steps = answer.steps;
  for (const option of byId("kind").options) option.disabled = !answer.kinds.includes(option.value);
  if (!answer.found) {
    byId("samples").replaceChildren();
    byId("histograms").replaceChildren();
    byId("counted").textContent = "";
    return showMessage(answer.kinds.length ? "no samples of this kind" : "the run has no samples");
  }
  const { samples, count, categories, origins, rewards, lengths } = answer.found;
  const offset = Number(query.offset || 0);
  byId("slider").min = steps.first;
  byId("slider").max = steps.last;
  byId("slider").value = steps.at;
  if (document.activeElement !== byId("step")) byId("step").value = steps.at;
  byId("before").disabled = steps.before === null;
  byId("after").disabled = steps.after === null;
  byId("newest").disabled = !query.step;
  choices("category", categories, query.category);
  choices("origin", origins, query.origin);
  byId("counted").textContent = count ? `${offset + 1} to ${offset + samples.length} of ${count} samples of step ${steps.at}` : `no matching sample in step ${steps.at}`;
  byId("previous-page").hidden = offset === 0;
  byId("next-page").hidden = offset + samples.length >= count;
  byId("previous-page").onclick = () => go({ offset: Math.max(0, offset - answer.page) || null });
  byId("next-page").onclick = () => go({ offset: offset + answer.page });
  morph(byId("histograms"), histogram("reward", rewards, formatNumber), histogram("length in characters", lengths, (value) => String(Math.round(value))));
  const recorded = new Set(answer.tokens);
  morph(byId("samples"), ...groupsOf(samples).map((some) => group(run, some, recorded)));
  byId("about-tokens").textContent = query.kind !== "eval" && !recorded.size && answer.tokens_near !== null ? "Token values are kept of some steps, the nearest one is" : "";
  byId("tokens-near").hidden = !byId("about-tokens").textContent;
  byId("tokens-near").textContent = `step ${answer.tokens_near}`;
  byId("tokens-near").onclick = () => go({ step: answer.tokens_near });
  showMessage("");
}

function go(changes) {
  address.set({ offset: null, ...changes });
  attempt(update);
}

for (const name of ["kind", "which", "sort"]) {
  byId(name).value = address.get(name, byId(name).options[0].value);
  byId(name).addEventListener("change", () => go({ [name]: byId(name).value, ...(name === "kind" ? { category: null, origin: null } : {}) }));
}
for (const name of ["category", "origin"]) byId(name).addEventListener("change", () => go({ [name]: byId(name).value }));
for (const name of ["reward_from", "reward_to", "search"]) {
  byId(name).value = address.get(name);
  byId(name).addEventListener("input", debounce(() => go({ [name]: byId(name).value })));
}
byId("slider").addEventListener("input", debounce(() => go({ step: byId("slider").value }), 80));
byId("step").addEventListener("change", () => go({ step: byId("step").value }));
byId("before").addEventListener("click", () => go({ step: steps.before }));
byId("after").addEventListener("click", () => go({ step: steps.after }));
byId("newest").addEventListener("click", () => go({ step: null }));
if (matchMedia("(max-width: 40rem)").matches) byId("filters").open = FILTERS.slice(2, -1).some((name) => address.get(name));
byId("curves").href = link("/curves", { run });
poll(update, 3);
