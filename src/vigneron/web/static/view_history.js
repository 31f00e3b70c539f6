// The samples of one prompt over all steps.

import { conversation } from "./conversation.js";
import { address, attempt, byId, fetchData, formatNumber, link, make } from "./common.js";
import { COLOURS, CONFIG, layout, onColours, plotly } from "./plots.js";

const run = address.get("run"), kind = address.get("kind");
byId("curves").href = link("/curves", { run });
byId("samples").href = link("/samples", { run, kind, step: address.get("step") });

attempt(async () => {
  const found = await fetchData("history", { run, kind, step: address.get("step"), sample: address.get("sample") });
  const answer = found.answer === null ? [] : [make("tr", {}, make("th", {}, "reference answer"), make("td", { class: "text" }, found.answer))];
  byId("prompt").append(make("table", {}, make("tr", {}, make("th", {}, "prompt"), make("td", { class: "text" }, found.prompt)), ...answer));
  byId("counted").textContent = `${found.samples.length} samples, the newest first`;
  byId("rows").append(...found.samples.map((sample) => make("tr", {},
    make("td", {}, make("a", { href: link("/samples", { run, kind, step: sample.step }) }, String(sample.step))),
    make("td", {}, String(sample.sample)), make("td", {}, formatNumber(sample.reward)), make("td", {}, formatNumber(sample.advantage)),
    make("td", { class: sample.correct ? "good" : "bad" }, { true: "yes", false: "no" }[sample.correct] ?? ""),
    make("td", { class: sample.conversation ? "" : "text" }, sample.conversation ? conversation(sample.conversation) : sample.completion, sample.truncated ? make("span", { class: "bad" }, " (truncated)") : null))));
  const scored = found.samples.filter((sample) => typeof sample.reward === "number");
  const draw = async () => {
    const Plotly = await plotly();
    const trace = { type: "scatter", mode: "markers", x: scored.map((one) => one.step), y: scored.map((one) => one.reward), marker: { color: COLOURS[0], size: 6 }, hovertemplate: "step %{x}: %{y:.4~g}<extra></extra>" };
    await Plotly.react(byId("plot"), [trace], layout(null, { x: "step", y: "reward" }), CONFIG);
  };
  byId("plot").hidden = !scored.length;
  if (scored.length) await draw();
  onColours(draw);
});
