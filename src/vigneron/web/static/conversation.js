// A conversation with an environment, turn by turn. What the model wrote has a coloured edge; all text stays text.

import { formatNumber, make } from "./common.js";

const LONG = 1200;

function text(value, longest, kind = "") {
  if (!value) return null;
  if (value.length <= longest) return make("div", { class: `text ${kind}` }, value);
  const summary = make("summary", {}, `${value.slice(0, 400)} … (${value.length} characters)`);
  return make("div", { class: `text ${kind}` }, make("details", {}, summary, value));
}

function turn(one, longest) {
  const written = one.text || one.calls.length || one.thinking ? null : make("div", { class: "quiet" }, "(empty)");
  return make("li", { class: one.model ? "model" : "other" },
    make("p", { class: "who" },
      make("b", {}, one.name ? `${one.role}: ${one.name}` : one.role),
      one.trained === null ? null : make("span", { class: one.trained ? "trained" : "quiet" }, one.trained ? "trained" : "not trained"),
      one.reward === null ? null : make("span", { class: "reward" }, "reward ", make("b", {}, formatNumber(one.reward))),
      one.log ? make("span", { class: "quiet" }, one.log) : null),
    text(one.thinking, longest, "quiet"), text(one.text, longest), written,
    ...one.calls.map((call) => make("div", { class: "call text" }, make("b", {}, call.name), "(", call.arguments, ")")),
    one.fault ? make("div", { class: "bad" }, `no valid call: ${one.fault}`) : null);
}

/** Longer texts are folded. */
export function conversation({ turns, left_out: leftOut = 0, ended = null, error = null }, longest = LONG) {
  const several = (count) => `${count} more message${count === 1 ? "" : "s"}`;
  return make("div", { class: "conversation" },
    make("ol", {}, ...turns.map((one) => turn(one, longest))),
    leftOut ? make("p", { class: "quiet" }, `… and ${several(leftOut)}`) : null,
    ended ? make("p", { class: "warned" }, `ended early: ${ended}`) : null,
    error ? make("p", { class: "bad" }, `the environment failed, so there is no reward: it ${error}`) : null);
}
