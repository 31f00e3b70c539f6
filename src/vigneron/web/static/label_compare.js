// Two or more completions side by side, in the order shuffled by the server. Conversations are shown turn by turn, what
// their turns earned only on demand: it would decide for the labeller.

import { byId, make } from "./common.js";
import { conversation } from "./conversation.js";
import { open, put } from "./label.js";

const best = byId("desk").dataset.kind === "best";
const LETTERS = { a: "a", ArrowLeft: "a", b: "b", ArrowRight: "b", t: "tie" };

const shownText = (text) => (typeof text === "string" ? make("div", { class: "text panel" }, text) : make("div", { class: "panel" }, conversation(text, Infinity)));

function showRewards(on) {
  byId("desk").classList.toggle("rewards", on);
  byId("show-rewards").setAttribute("aria-pressed", String(on));
}

function draw(item) {
  put("prompt", item.prompt);
  showRewards(false);
  byId("show-rewards").hidden = !item.completions.some((text) => text.turns?.some((turn) => turn.reward !== null));
  const names = item.completions.map((_, place) => (best ? String(place + 1) : "AB"[place]));
  const shown = item.completions.map((text, place) =>
    make("article", {}, make("h2", {}, names[place]), shownText(text)),
  );
  byId("completions").replaceChildren(...shown);
  const button = (name) => make("button", { "data-key": name }, make("kbd", {}, name));
  if (best) byId("digits").replaceChildren(...names.map(button));
}

function choiceOf(key, item) {
  if (key === "r") return showRewards(!byId("desk").classList.contains("rewards"));
  if (!best) return Object.hasOwn(LETTERS, key) ? LETTERS[key] : undefined;
  const place = /^[1-9]$/.test(key) ? Number(key) : 0;
  return place >= 1 && place <= item.completions.length ? place : undefined;
}

open({ draw, choiceOf });
