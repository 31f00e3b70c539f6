// Texts with marks: spaces and line breaks made visible (key W), and where two texts differ (key D). The marks are drawn
// beside the text, which stays as it is when it is copied or read aloud.

import { byId, make } from "./common.js";
import { difference } from "./difference.js";

const GLYPHS = { " ": "·", "\t": "→", "\n": "¶" };
const LITTLE_IN_COMMON = 0.25;
const on = { spaces: false, difference: true };

const glyph = (space) => make("span", { class: "space", "data-glyph": GLYPHS[space] }, space);

function withSpaces(text) {
  return text.split(/([ \t\n])/).map((part) => (Object.hasOwn(GLYPHS, part) ? glyph(part) : part));
}

/** Spaces are shown where they are asked for, and where they are the difference. */
function draw(element, parts) {
  const nodes = parts.map(([text, differs]) => {
    const shown = on.spaces || (differs && text.trim() === "") ? withSpaces(text) : [text];
    return differs ? make("mark", {}, ...shown) : shown;
  });
  element.replaceChildren(...nodes.flat().filter((node) => node !== ""));
}

const texts = (root) => [...root.querySelectorAll(".text:not(.call)")];
const turns = (article) => [...article.querySelectorAll("li")];

/** Texts to compare: of two conversations those of the same turn, as long as the same role speaks. */
function pairs() {
  const articles = [...byId("work").querySelectorAll("#completions article")];
  if (articles.length !== 2 || !byId("difference")) return [];
  const [one, other] = articles.map((article) => (turns(article).length ? turns(article) : [article]));
  const found = [];
  for (let at = 0; at < Math.min(one.length, other.length) && one[at].className === other[at].className; at++) {
    const [first, second] = [texts(one[at]), texts(other[at])];
    if (first.length === second.length) first.forEach((text, place) => found.push([text, second[place]]));
  }
  return found;
}

/** Draws the item's texts again, with the marks that are on. */
export function mark() {
  for (const element of texts(byId("work"))) draw(element, [[element.textContent, false]]);
  const compared = pairs().map((pair) => [pair, difference(...pair.map((element) => element.textContent))]);
  const alike = compared.filter(([, found]) => found.alike >= LITTLE_IN_COMMON);
  if (on.difference) for (const [pair, found] of alike) pair.forEach((element, place) => draw(element, found.parts[place]));
  for (const [name, button] of [["spaces", byId("spaces")], ["difference", byId("difference")]]) {
    button?.setAttribute("aria-pressed", String(on[name]));
  }
  if (byId("difference")) byId("unlike").hidden = !on.difference || compared.length === 0 || alike.length > 0;
}

export function toggle(name) {
  on[name] = !on[name];
  mark();
}
