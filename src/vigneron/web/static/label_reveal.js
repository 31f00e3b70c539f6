// What could decide for the labeller is hidden until the key R: the reference answer, rewards, a judge's reasoning.

import { byId } from "./common.js";
import { put } from "./label.js";

/** For a new item: hides again, and says what is hidden. `others` are parts that the page itself shows. */
export function hide(item, others = []) {
  const parts = [...(item.answer ? ["the reference answer"] : []), ...others];
  put("answer", item.answer ?? "");
  put("hidden-parts", parts.join(", "));
  byId("hidden").hidden = byId("reveal").hidden = parts.length === 0;
  byId("reference").hidden = !item.answer;
  reveal(false);
}

export function reveal(on = !byId("desk").classList.contains("revealed")) {
  if (byId("hidden").hidden) on = false;
  byId("desk").classList.toggle("revealed", on);
  byId("reveal").setAttribute("aria-pressed", String(on));
  put("hidden-state", on ? "Shown" : "Hidden, so that it does not decide for you");
  return on;
}
