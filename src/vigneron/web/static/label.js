// Shared by the labelling pages: the current item, the next one, and sending judgements one after another.

import { byId, keyed } from "./common.js";
import { toggle } from "./label_text.js";

/** Text as text: nothing in it is markup. */
export function put(id, text) {
  byId(id).textContent = text;
}

function show(id, text) {
  byId(id).hidden = !text;
  put(id, text ?? "");
}

async function request(path, body) {
  const options =
    body === undefined
      ? { headers: keyed() }
      : { method: "POST", headers: { "Content-Type": "application/json", ...keyed() }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("No answer from the server: is `vigneron label` still running? Earlier judgements are saved.");
  }
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let line = text;
  try {
    line = JSON.parse(text).error;
  } catch {
    // plain text
  }
  throw new Error(line || answer.statusText);
}

/** From the usual time between the last labels, which a pause does not change. */
function timeLeft(times, items) {
  const recent = times.slice(-21);
  if (recent.length < 6 || items <= 0) return "";
  const waits = recent.slice(1).map((time, place) => time - recent[place]).sort((one, other) => one - other);
  const minutes = Math.round((items * waits[Math.floor(waits.length / 2)]) / 60_000);
  return minutes < 1 ? "" : `about ${minutes} min left`;
}

/**
 * `draw(item)` shows an item, `onState(state)` the rest of the page; `choiceOf(key, item)` is what a key sends.
 * The next item is shown before the server answers; if the request fails, the item comes back.
 */
export function open({ draw, onState = () => {}, choiceOf }) {
  let current = null;
  let upcoming = null;
  let queue = Promise.resolve();
  const times = [];

  function turn(item) {
    const changed = item?.id !== current?.id;
    current = item;
    byId("work").hidden = item === null;
    if (item !== null && changed) {
      draw(item);
      window.scrollTo(0, 0);
    }
  }

  function accept(state) {
    upcoming = state.next;
    turn(state.item);
    byId("bar").max = Math.max(state.of, 1);
    byId("bar").value = state.done;
    const kinds = [`${state.done} of ${state.of}${state.more ? " so far" : ""}`];
    if (state.ties) kinds.push(`${state.ties} ${state.ties === 1 ? "tie" : "ties"}`);
    if (state.skips) kinds.push(`${state.skips} skipped`);
    const left = timeLeft(times, state.of - state.done);
    if (left) kinds.push(left);
    put("progress", kinds.join(", "));
    put("rows", `${state.rows} ${state.rows === 1 ? "row" : "rows"}`);
    put("then", state.then ?? "");
    byId("use").hidden = !state.then;
    show("agreement", state.agreement);
    show("with-reward", state.with_reward);
    show("note", state.note);
    const done = state.item === null && !state.more;
    if (done && byId("done").hidden) byId("use").open = true;
    byId("done").hidden = !done;
    for (const button of document.querySelectorAll('[data-key="u"]')) button.disabled = !state.undo;
    onState(state);
    if (state.item === null && state.more) setTimeout(() => send("/data/state"), 700);
  }

  function send(path, body, back) {
    queue = queue.then(async () => {
      try {
        accept(await request(path, body));
        show("complaint", null);
      } catch (error) {
        if (back) turn(back);
        show("complaint", error.message);
      }
    });
  }

  function judge(choice) {
    if (current === null) return;
    const judged = current;
    times.push(Date.now());
    if (upcoming !== null) turn(upcoming);
    else current = null;
    upcoming = null;
    send("/judge", { item: judged.id, choice }, judged);
  }

  function press(key) {
    if (key === "u") return send("/undo", {});
    if (key === "s") return judge("skip");
    if (key === "w") return toggle("spaces");
    const choice = current === null ? undefined : choiceOf(key, current);
    if (choice !== undefined) judge(choice);
  }

  document.addEventListener("keydown", (event) => {
    // A key that is held down counts once.
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target instanceof HTMLInputElement && event.key.startsWith("Arrow")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === "ArrowLeft" || key === "ArrowRight") event.preventDefault();
    press(key);
  });
  document.addEventListener("click", (event) => {
    const key = event.target.closest("[data-key]")?.dataset.key;
    if (key) press(key);
  });
  send("/data/state");
  return { judge };
}
