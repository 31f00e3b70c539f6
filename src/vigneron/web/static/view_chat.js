// Chat with a checkpoint of a run. The server loads its model with the first message.

import { address, attempt, byId, fetchData, keyed, link, make, showMessage } from "./common.js";

const run = address.get("run");
let talk = []; // the user's texts and the replies, in turn
byId("curves").href = link("/curves", { run });
byId("samples").href = link("/samples", { run });

function draw(waiting = false) {
  const turns = talk.map((text, place) => make("li", { class: place % 2 ? "model" : "other" },
    make("p", { class: "who" }, make("b", {}, place % 2 ? "model" : "you")), make("div", { class: "text" }, text)));
  byId("talk").replaceChildren(...turns, ...(waiting ? [make("li", { class: "model quiet" }, "waiting; the first reply loads the model …")] : []));
  byId("send").disabled = waiting;
}

async function send() {
  const text = byId("text").value;
  if (!text.trim() || byId("send").disabled) return;
  const own = talk; // "New conversation" begins another one while this waits
  own.push(text);
  byId("text").value = "";
  draw(true);
  try {
    const body = { run, step: Number(byId("step").value), talk: own, temperature: Number(byId("temperature").value), max_new_tokens: Number(byId("tokens").value) || null };
    const answer = await fetch("/chat/reply", { method: "POST", headers: { ...keyed(), "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(found.error ?? `the server answered with status ${answer.status}`);
    own.push(found.reply);
    showMessage("");
  } catch (error) {
    own.pop();
    byId("text").value ||= text; // unless the next one has been begun
    throw error;
  } finally {
    draw();
    byId("text").focus();
  }
}

byId("send").addEventListener("click", () => attempt(send));
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    attempt(send);
  }
});
byId("new").addEventListener("click", () => { talk = []; draw(byId("send").disabled); });
for (const name of ["step", "temperature", "tokens"]) byId(name).addEventListener("change", () => address.set({ [name]: byId(name).value }));

attempt(async () => {
  const { steps } = await fetchData("checkpoints", { run });
  byId("step").append(...steps.toReversed().map((step) => make("option", { value: step }, `after step ${step}`)), make("option", { value: 0 }, "before training"));
  byId("step").value = address.get("step", steps.at(-1) ?? "0");
  if (!byId("step").value) byId("step").selectedIndex = 0;
  byId("temperature").value = address.get("temperature", "0");
  byId("tokens").value = address.get("tokens");
  byId("send").disabled = !steps.length;
  if (!steps.length) showMessage("the run has no checkpoint: set `save_every`");
});
