// The samples of one prompt: the prompt once, then each completion with its reward, advantage and what the reward said.

import { conversation } from "./conversation.js";
import { formatNumber, link, make } from "./common.js";
import { tokenPanel } from "./tokens.js";

const LONG = 1200;

/** A text, folded if it is long. */
function folded(value) {
  const string = String(value ?? "");
  if (string.length <= LONG) return string;
  return make("details", {}, make("summary", {}, `${string.slice(0, 400)} … (${string.length} characters)`), string);
}

const line = (name, value) => make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "text" }, folded(value)));

/** Neighbours with one prompt. */
export function groupsOf(samples) {
  const groups = [];
  for (const sample of samples) {
    if (groups.at(-1)?.[0].prompt === sample.prompt) groups.at(-1).push(sample);
    else groups.push([sample]);
  }
  return groups;
}

function parts(extras) {
  const plain = Object.entries(extras).filter(([name, value]) => name !== "rubric" && value !== null);
  if (!plain.length) return null;
  const shown = (value) => (typeof value === "object" ? JSON.stringify(value) : formatNumber(value));
  const part = (text) => (text.length > 60 ? make("span", { class: "text" }, folded(text)) : make("b", {}, text));
  return make("div", { class: "parts" }, ...plain.map(([name, value]) => make("span", {}, `${name} `, part(shown(value)))));
}

function verdicts(rubric) {
  if (!rubric || typeof rubric !== "object" || !rubric.items) return null;
  const heads = ["item", "score", "confidence", "critique", "reasoning"];
  const cell = (value) => make("td", { class: "text" }, folded(value));
  return make("div", { class: "scrolls" }, make("table", { class: "judged" }, make("tr", {}, ...heads.map((head) => make("th", {}, head))),
    ...Object.entries(rubric.items).map(([name, one]) => make("tr", {},
      make("td", {}, name), make("td", {}, formatNumber(one.score)), make("td", {}, one.score === null ? "–" : formatNumber(one.confidence)),
      cell(one.critique), cell(one.score === null || one.score === undefined ? `no score: ${one.why ?? "no reason given"} ${one.reasoning ?? ""}` : one.reasoning)))));
}

/** From the middle to the right where the advantage is positive, to the left where it is negative. */
function advantageBar(advantage, most) {
  const share = most ? (50 * Math.abs(advantage)) / most : 0;
  const side = advantage < 0 ? `right: 50%; background: var(--bad)` : `left: 50%; background: var(--good)`;
  return make("span", { class: "advantage", "aria-hidden": "true" }, make("i", { style: `width: ${share}%; ${side}` }));
}

function card(run, sample, most, hasTokens) {
  const right = { true: make("span", { class: "good" }, "right"), false: make("span", { class: "bad" }, "wrong") }[sample.correct] ?? null;
  const rubric = sample.extras.rubric;
  const text = make("div", { class: "text completion", "data-kept": "" }, sample.completion === "" ? make("span", { class: "quiet" }, "(empty)") : folded(sample.completion));
  const tokens = hasTokens ? tokenPanel(run, sample, sample.conversation ? null : text) : null;
  const said = sample.conversation ? conversation(sample.conversation) : text;
  return make("section", { class: "sample", "data-sample": sample.sample, "data-key": `${sample.step} ${sample.sample}`, "aria-label": `sample ${sample.sample}` },
    make("p", { class: "head" },
      make("b", {}, `#${sample.sample}`),
      make("span", {}, "reward ", make("b", {}, sample.reward === null ? "missing" : formatNumber(sample.reward))),
      sample.advantage === null ? null : make("span", { class: "of-advantage" }, "advantage ", make("b", {}, formatNumber(sample.advantage)), advantageBar(sample.advantage, most)),
      right,
      sample.truncated ? make("span", { class: "bad" }, "truncated") : null,
      sample.conversation?.error ? make("span", { class: "bad" }, "environment failed") : null,
      rubric?.category ? make("span", {}, `category ${rubric.category}`) : null,
      rubric?.version ? make("span", { class: "quiet" }, `rubric ${rubric.version}`) : null,
      make("a", { href: link("/history", { run, kind: sample.kind, step: sample.step, sample: sample.sample }) }, "over the steps"), tokens?.button),
    said,
    tokens?.box,
    parts(sample.extras), verdicts(rubric));
}

function spread(rewards) {
  const low = Math.min(...rewards), high = Math.max(...rewards), mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  return low === high ? `reward ${formatNumber(low)}` : `mean reward ${formatNumber(mean)}, from ${formatNumber(low)} to ${formatNumber(high)}`;
}

/** `recorded`: numbers of the samples whose tokens have values. */
export function group(run, samples, recorded) {
  const [{ step, sample: first, prompt }] = samples;
  const answers = new Set(samples.map((sample) => sample.answer));
  const rewards = samples.map((sample) => sample.reward).filter((reward) => typeof reward === "number");
  const most = Math.max(...samples.map((sample) => Math.abs(sample.advantage ?? 0)));
  const answer = (value) => (value === null ? null : line("reference answer", value));
  return make("article", { class: "prompt-group", "data-key": `${step} ${first}` },
    make("table", { class: "prompt" }, line("prompt", prompt), answers.size === 1 ? answer(samples[0].answer) : null),
    samples.length > 1 && rewards.length ? make("p", { class: "quiet" }, `${samples.length} completions, ${spread(rewards)}`) : null,
    ...samples.flatMap((sample) => [
      card(run, sample, most, recorded.has(sample.sample)),
      answers.size > 1 && sample.answer !== null ? make("p", { class: "quiet", "data-key": `answer ${sample.sample}` }, "reference answer: ", make("span", { class: "text" }, folded(sample.answer))) : null,
    ]));
}
