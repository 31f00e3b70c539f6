// Two completions, or a group of them, side by side in the order in which the server shuffled them.

import { open, put } from "./label.js";

const best = document.getElementById("desk").dataset.kind === "best";
const LETTERS = { a: "a", ArrowLeft: "a", b: "b", ArrowRight: "b", t: "tie" };

function element(name, text, more = {}) {
  const made = Object.assign(document.createElement(name), more);
  made.textContent = text;
  return made;
}

function button(key, text) {
  const made = element("button", text);
  made.dataset.key = key;
  return made;
}

function draw(item) {
  put("prompt", item.prompt);
  const names = item.completions.map((_, place) => (best ? String(place + 1) : "AB"[place]));
  const shown = item.completions.map((text, place) => {
    const article = document.createElement("article");
    article.append(element("h2", names[place]), element("div", text, { className: "text panel" }));
    return article;
  });
  document.getElementById("completions").replaceChildren(...shown);
  if (best) document.getElementById("digits").replaceChildren(...names.map((name) => button(name, name)));
}

function choiceOf(key, item) {
  if (!best) return Object.hasOwn(LETTERS, key) ? LETTERS[key] : undefined;
  const place = /^[1-9]$/.test(key) ? Number(key) : 0;
  return place >= 1 && place <= item.completions.length ? place : undefined;
}

open({ draw, choiceOf });
