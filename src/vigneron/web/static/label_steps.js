// A solution, step by step. Keys mark the current step and go to the next one; Enter sends all marks.

import { byId, make } from "./common.js";
import { open, put } from "./label.js";
import { hide, reveal } from "./label_reveal.js";
import { mark as showSpaces } from "./label_text.js";

const MARKS = { 1: "right", 0: "wrong", "?": "unclear" };
const KEYS = { right: "1", wrong: "0", unclear: "?" };
let marks = [];
let at = 0;

function refresh() {
  for (const [place, row] of [...byId("steps").children].entries()) {
    row.classList.toggle("current", place === at);
    for (const button of row.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.mark === marks[place]));
    }
  }
  byId("steps").children[at]?.scrollIntoView({ block: "nearest" });
}

function draw(item) {
  put("prompt", item.prompt);
  marks = item.steps.map(() => null);
  at = 0;
  const button = (place, mark) =>
    make("button", { "data-step": String(place), "data-mark": mark, title: mark, "aria-pressed": "false" }, KEYS[mark]);
  const rows = item.steps.map((text, place) =>
    make("li", {}, make("div", { class: "text" }, text), ...Object.values(MARKS).map((mark) => button(place, mark))),
  );
  byId("steps").replaceChildren(...rows);
  hide(item);
  showSpaces();
  refresh();
}

function mark(value) {
  marks[at] = value;
  at = Math.min(at + 1, marks.length - 1);
}

/** Marks the current step; only Enter sends, and only if a step is marked. What is not marked is unclear. */
function choiceOf(key) {
  if (key === "r") return void reveal();
  if (key === "Enter") return marks.some((value) => value !== null) ? marks.map((v) => v ?? "unclear") : undefined;
  if (Object.hasOwn(MARKS, key)) mark(MARKS[key]);
  else if (key === "ArrowDown") at = Math.min(at + 1, marks.length - 1);
  else if (key === "ArrowUp") at = Math.max(at - 1, 0);
  else if (key === "a") marks = marks.map(() => "right");
  else if (key === "f") marks = marks.map((_, place) => (place < at ? "right" : place === at ? "wrong" : "unclear"));
  refresh();
  return undefined;
}

open({ draw, choiceOf });
document.addEventListener("keydown", (event) => {
  // Enter is for all marks, not for a button that was clicked before; arrows do not scroll.
  if (["Enter", "ArrowDown", "ArrowUp"].includes(event.key)) event.preventDefault();
});
byId("steps").addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-mark]");
  const row = event.target.closest("li");
  if (row) at = [...byId("steps").children].indexOf(row);
  if (chosen) mark(chosen.dataset.mark);
  refresh();
});
