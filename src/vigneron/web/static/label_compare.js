// Two or more completions side by side, in the order shuffled by the server. Conversations are shown turn by turn.

import { byId, formatNumber, make } from "./common.js";
import { conversation } from "./conversation.js";
import { open, put } from "./label.js";
import { hide, reveal } from "./label_reveal.js";
import { mark, toggle } from "./label_text.js";

const best = byId("desk").dataset.kind === "best";
const LETTERS = { a: "a", ArrowLeft: "a", b: "b", ArrowRight: "b", t: "tie" };

const shownText = (text) => (typeof text === "string" ? make("div", { class: "text panel" }, text) : make("div", { class: "panel" }, conversation(text, Infinity)));

const shownReward = (reward) => (typeof reward === "number" ? make("span", { class: "hidden-part quiet" }, ` reward ${formatNumber(reward)}`) : null);

function draw(item) {
  put("prompt", item.prompt);
  const rewards = item.rewards ?? [];
  const known = [];
  if (rewards.some((reward) => reward !== null)) known.push("the rewards");
  if (item.completions.some((text) => text.turns?.some((turn) => turn.reward !== null))) known.push("the rewards of turns");
  hide(item, known);
  const names = item.completions.map((_, place) => (best ? String(place + 1) : "AB"[place]));
  const shown = item.completions.map((text, place) =>
    make("article", {}, make("h2", {}, names[place], shownReward(rewards[place])), shownText(text)),
  );
  byId("completions").replaceChildren(...shown);
  mark();
  const button = (name) => make("button", { "data-key": name }, make("kbd", {}, name));
  if (best) byId("digits").replaceChildren(...names.map(button));
}

function choiceOf(key, item) {
  if (key === "r") return void reveal();
  if (key === "d" && !best) return toggle("difference");
  if (!best) return Object.hasOwn(LETTERS, key) ? LETTERS[key] : undefined;
  const place = /^[1-9]$/.test(key) ? Number(key) : 0;
  return place >= 1 && place <= item.completions.length ? place : undefined;
}

open({ draw, choiceOf });
