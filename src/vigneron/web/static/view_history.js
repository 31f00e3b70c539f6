// The samples of one prompt over all steps, and how two of them differ.

import { conversation } from "./conversation.js";
import { address, attempt, byId, fetchData, formatNumber, link, make } from "./common.js";
import { difference } from "./difference.js";
import { COLOURS, CONFIG, layout, onColours, plotly, ranges } from "./plots.js";

const run = address.get("run"), kind = address.get("kind");
byId("curves").href = link("/curves", { run });
byId("samples").href = link("/samples", { run, kind, step: address.get("step") });

const named = (sample) => `step ${sample.step}, #${sample.sample}, reward ${sample.reward === null ? "missing" : formatNumber(sample.reward)}`;

/** Before and after: at first the oldest and the newest sample. */
function compare(samples) {
  byId("compare").hidden = samples.length < 2;
  const at = (name, otherwise) => {
    const chosen = samples.findIndex((sample) => `${sample.step}.${sample.sample}` === address.get(name));
    return chosen < 0 ? otherwise : chosen;
  };
  const oldest = samples.findIndex((sample) => sample.step === samples.at(-1)?.step);
  for (const [name, otherwise] of [["before", oldest], ["after", 0]]) {
    byId(name).append(...samples.map((sample, place) => make("option", { value: place }, named(sample))));
    byId(name).value = at(name, otherwise);
    byId(name).addEventListener("change", draw);
  }
  function draw(event) {
    const [before, after] = ["before", "after"].map((name) => samples[byId(name).value]);
    if (event) address.set({ before: `${before.step}.${before.sample}`, after: `${after.step}.${after.sample}` });
    const { parts } = difference(before.completion, after.completion);
    const shown = (place, tag) => make("div", { class: "text" }, ...parts[place].map(([text, differs]) => (differs ? make(tag, {}, text) : text)));
    byId("difference").replaceChildren(...(before.completion === after.completion ? [make("p", { class: "quiet" }, "The two are equal.")] : [shown(0, "del"), shown(1, "ins")]));
  }
  if (samples.length > 1) draw();
}

attempt(async () => {
  const found = await fetchData("history", { run, kind, step: address.get("step"), sample: address.get("sample") });
  const line = (name, value) => make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "text" }, value));
  byId("prompt").append(make("table", { class: "prompt" }, line("prompt", found.prompt), found.answer === null ? null : line("reference answer", found.answer)));
  byId("counted").textContent = `${found.samples.length} samples, the newest first`;
  compare(found.samples);
  byId("rows").append(...found.samples.map((sample) => make("tr", {},
    make("td", {}, make("a", { href: link("/samples", { run, kind, step: sample.step }) }, `step ${sample.step}`)),
    make("td", {}, `#${sample.sample}`), make("td", { title: "reward" }, formatNumber(sample.reward)), make("td", { title: "advantage" }, formatNumber(sample.advantage)),
    make("td", { class: sample.correct ? "good" : "bad" }, { true: "right", false: "wrong" }[sample.correct] ?? ""),
    make("td", { class: sample.conversation ? "" : "text" }, sample.conversation ? conversation(sample.conversation) : sample.completion, sample.truncated ? make("span", { class: "bad" }, " (truncated)") : null))));
  const scored = found.samples.filter((sample) => typeof sample.reward === "number");
  const draw = async () => {
    const Plotly = await plotly();
    const trace = { type: "scatter", mode: "markers", x: scored.map((one) => one.step), y: scored.map((one) => one.reward), marker: { color: COLOURS[0], size: 6 }, hovertemplate: "step %{x}: %{y:.4~g}<extra></extra>" };
    await Plotly.react(byId("plot"), [trace], layout(ranges([trace], "reward"), { titles: { x: "step", y: "reward" } }), CONFIG);
  };
  byId("plot").hidden = !scored.length;
  if (scored.length) await draw();
  onColours(draw);
});
