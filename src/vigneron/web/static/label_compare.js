// Two or more completions side by side, in the order shuffled by the server.

import { byId, make } from "./common.js";
import { open, put } from "./label.js";

const best = byId("desk").dataset.kind === "best";
const LETTERS = { a: "a", ArrowLeft: "a", b: "b", ArrowRight: "b", t: "tie" };

function draw(item) {
  put("prompt", item.prompt);
  const names = item.completions.map((_, place) => (best ? String(place + 1) : "AB"[place]));
  const shown = item.completions.map((text, place) =>
    make("article", {}, make("h2", {}, names[place]), make("div", { class: "text panel" }, text)),
  );
  byId("completions").replaceChildren(...shown);
  const button = (name) => make("button", { "data-key": name }, make("kbd", {}, name));
  if (best) byId("digits").replaceChildren(...names.map(button));
}

function choiceOf(key, item) {
  if (!best) return Object.hasOwn(LETTERS, key) ? LETTERS[key] : undefined;
  const place = /^[1-9]$/.test(key) ? Number(key) : 0;
  return place >= 1 && place <= item.completions.length ? place : undefined;
}

open({ draw, choiceOf });
