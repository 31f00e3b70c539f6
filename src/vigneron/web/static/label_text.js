// Texts with marks: spaces and line breaks made visible (key W), and where two texts differ (key D). The marks are drawn
// beside the text, which stays as it is when it is copied or read aloud.

import { byId, make } from "./common.js";
import { difference, MOST_CELLS } from "./difference.js";

const BREAKS = { "\t": "→", "\n": "¶" };
const LITTLE_IN_COMMON = 0.25;
const on = { spaces: false, difference: true };

/** A run of spaces has a dot for each, as a background; tabs and line breaks a sign before them. */
function shownSpace(part) {
  if (part[0] === " ") return make("span", { class: "space" }, part);
  return Object.hasOwn(BREAKS, part) ? make("span", { class: "break", "data-sign": BREAKS[part] }, part) : part;
}

/** One by one: a call with as many arguments as a text has spaces may be refused. */
function add(parent, text, spaces) {
  if (!spaces) return parent.append(text);
  for (const part of text.split(/( +|\t|\n)/)) parent.append(shownSpace(part));
}

/** Spaces are shown where they are asked for, and where they are the difference. */
function draw(element, parts) {
  const drawn = document.createDocumentFragment();
  for (const [text, differs] of parts) {
    const parent = differs ? drawn.appendChild(make("mark")) : drawn;
    add(parent, text, on.spaces || (differs && text.trim() === ""));
  }
  element.replaceChildren(drawn);
}

const texts = (root) => [...root.querySelectorAll(".text:not(.call)")];
const turns = (article) => [...article.querySelectorAll("li")];

/** Texts to compare: of two conversations those of the same turn, as long as the same role speaks. */
function pairs() {
  const articles = [...byId("work").querySelectorAll("#completions article")];
  if (articles.length !== 2) return [];
  const [one, other] = articles.map((article) => (turns(article).length ? turns(article) : [article]));
  const found = [];
  for (let at = 0; at < Math.min(one.length, other.length) && one[at].className === other[at].className; at++) {
    const [first, second] = [texts(one[at]), texts(other[at])];
    if (first.length === second.length) first.forEach((text, place) => found.push([text, second[place]]));
  }
  return found;
}

function markDifferences() {
  const compared = on.difference ? pairs() : [];
  let marked = 0;
  for (const pair of compared) {
    const { parts, alike } = difference(...pair.map((element) => element.textContent), MOST_CELLS / compared.length);
    if (alike < LITTLE_IN_COMMON) continue;
    pair.forEach((element, place) => draw(element, parts[place]));
    marked++;
  }
  byId("unlike").hidden = marked > 0 || compared.length === 0;
}

/** Draws the item's texts again, with the marks that are on. */
export function mark() {
  for (const element of texts(byId("work"))) draw(element, [[element.textContent, false]]);
  if (byId("difference")) markDifferences();
  for (const name of ["spaces", "difference"]) byId(name)?.setAttribute("aria-pressed", String(on[name]));
}

export function toggle(name) {
  on[name] = !on[name];
  mark();
}
