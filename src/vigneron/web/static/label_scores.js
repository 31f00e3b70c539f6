// One answer under one rubric item. The judge's score is shown only after the labeller's.

import { byId } from "./common.js";
import { open, put } from "./label.js";
import { hide, reveal } from "./label_reveal.js";
import { mark } from "./label_text.js";

const slider = byId("slider");
const FIELDS = ["prompt", "completion", "item", "category", "description", "critique", "reasoning"];

function draw(item) {
  for (const field of FIELDS) put(field, item[field]);
  for (const field of ["critique", "reasoning"]) byId(field).parentElement.hidden = !item[field];
  hide(item, item.reasoning ? ["the judge's reasoning, which may reveal its score"] : []);
  byId("why").open = false;
  mark();
  slider.value = 0.5;
  put("value", "0.50");
}

function onState(state) {
  const last = state.last;
  byId("last").hidden = last === null;
  if (last === null) return;
  const number = (value) => (typeof value === "number" ? value.toFixed(2) : "–");
  put("last", `Last item, ${last.item}: you ${number(last.yours)}, the judge ${number(last.judge)} (confidence ${number(last.sure)})`);
}

function choiceOf(key) {
  if (key === "r") return void (byId("why").open = reveal());
  if (key === "x") return 10;
  return /^[0-9]$/.test(key) ? Number(key) : undefined;
}

const desk = open({ draw, onState, choiceOf });
const give = () => desk.judge(Number((Number(slider.value) * 10).toFixed(2)));
slider.addEventListener("input", () => put("value", Number(slider.value).toFixed(2)));
slider.addEventListener("keydown", (event) => event.key === "Enter" && give());
byId("give").addEventListener("click", give);
