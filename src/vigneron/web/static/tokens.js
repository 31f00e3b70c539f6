// A completion token by token: one value as the background, all values of the token under the pointer.

import { attempt, fetchData, formatNumber, make } from "./common.js";

const VALUES = {
  logprob: { label: "log-prob", meaning: "of the policy that sampled: strong where the token was unlikely", colour: "--accent" },
  advantage: { label: "advantage", meaning: "green where the token is made more likely, red where less", middle: 0 },
  entropy: { label: "entropy", meaning: "of the policy at the token, in nats: strong where it was undecided", colour: "--accent" },
  ratio: { label: "ratio", meaning: "probability in the last update over that at sampling: green above 1, red below", middle: 1 },
  kl: { label: "KL", meaning: "log-prob minus the reference's: green where the policy likes the token more, red where less", middle: 0 },
};

/** How strong the background is, from -1 to 1. */
function strengths(name, values) {
  const { middle } = VALUES[name], numbers = values.filter((value) => typeof value === "number");
  const away = (value) => (name === "ratio" ? Math.log(Math.max(value, 1e-6)) : name === "logprob" ? -value : value - (middle ?? 0));
  const most = Math.max(...numbers.map((value) => Math.abs(away(value))), 1e-6);
  return values.map((value) => (typeof value === "number" ? away(value) / most : null));
}

// At most 45 %: the text stays readable, light and dark.
function background(name, strength) {
  if (strength === null || Math.abs(strength) < 0.02) return "";
  const colour = VALUES[name].colour ?? (strength < 0 ? "--bad" : "--good");
  return `background: color-mix(in srgb, var(${colour}) ${Math.round(45 * Math.abs(strength))}%, transparent)`;
}

// What cannot be seen in a token.
const visibleText = (piece) => piece.replaceAll("\n", "⏎\n");

function draw(box, found) {
  const names = Object.keys(VALUES).filter((name) => found.values[name]?.some((value) => typeof value === "number"));
  if (!names.length) return box.replaceChildren("no values were kept");
  const select = make("select", { "aria-label": "value that colours the tokens" }, ...names.map((name) => make("option", { value: name }, VALUES[name].label)));
  const about = make("span", { class: "quiet" }), under = make("p", { class: "token-values", role: "status" }, "point at a token for its values, or go through them with the arrow keys");
  const tokens = found.pieces.map((piece, at) => make("span", { class: found.trained[at] ? "token" : "token untrained", "data-at": at }, visibleText(piece)));
  const line = (at) => [`token ${at + 1} of ${found.pieces.length}`, ...names.map((name) => `${VALUES[name].label} ${formatNumber(found.values[name][at])}`), found.trained[at] ? "" : "not trained"].filter(Boolean).join(", ");
  const colour = () => {
    const name = select.value, strength = strengths(name, found.values[name]);
    const numbers = found.values[name].filter((value) => typeof value === "number");
    about.textContent = `${formatNumber(Math.min(...numbers))} to ${formatNumber(Math.max(...numbers))}: ${VALUES[name].meaning}`;
    tokens.forEach((token, at) => token.setAttribute("style", background(name, strength[at])));
  };
  const text = make("div", { class: "text tokens", role: "group", tabindex: 0, "aria-label": "tokens" }, ...tokens, found.left_out ? make("span", { class: "quiet" }, ` … ${found.left_out} more tokens`) : null);
  let chosen = -1;
  const choose = (at) => {
    tokens[chosen]?.classList.remove("chosen");
    chosen = at;
    tokens[at].classList.add("chosen");
    under.textContent = line(at);
  };
  text.addEventListener("pointerover", (event) => {
    const at = event.target.dataset?.at;
    if (at !== undefined) choose(Number(at));
  });
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(Math.max(chosen + step, 0), tokens.length - 1));
  });
  select.addEventListener("change", colour);
  box.replaceChildren(make("p", { class: "head" }, select, about), text, under);
  colour();
}

/** A button, and a box in which it shows the tokens in place of `plain`, the completion's text. */
export function tokenPanel(run, sample, plain) {
  const box = make("div", { hidden: "", class: "token-panel", "data-kept": "" });
  const button = make("button", { class: "link", "aria-expanded": "false", "data-kept": "" }, "tokens");
  button.addEventListener("click", () => attempt(async () => {
    const open = box.hidden;
    if (open) draw(box, await fetchData("tokens", { run, kind: sample.kind, step: sample.step, sample: sample.sample }));
    box.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "text" : "tokens";
    plain?.toggleAttribute("hidden", open);
  }));
  return { button, box };
}
