// Desktop notifications of the browser, while a page is open: a run ends, fails, or warns.

import { byId } from "./common.js";

const known = new Map(); // the last state of each run
const possible = () => "Notification" in window;
export const notifies = () => possible() && Notification.permission === "granted" && localStorage.getItem("notify") === "on";

function show(title, body) {
  // With the same tag, several open pages show one notification.
  const notification = new Notification(title, { body, tag: `${title} ${body}`, icon: "/static/vine.svg" });
  notification.addEventListener("click", () => { window.focus(); notification.close(); });
}

/** Compare the runs with those of the last call. */
export function observe(runs) {
  for (const run of runs) {
    const before = known.get(run.name);
    known.set(run.name, run);
    if (!before || !notifies()) continue;
    const metrics = run.metrics.map(({ label, value }) => `${label} ${value.toPrecision(3)}`).join(", ");
    if (before.alive && !run.alive) show(`${run.name}: ${run.state}`, run.error ?? run.outcome?.text ?? `step ${run.step} of ${run.steps}${metrics ? `: ${metrics}` : ""}`);
    else if (run.warnings > before.warnings) show(`${run.name}: warning`, run.warning);
  }
}

function label(button) {
  button.hidden = !possible();
  button.setAttribute("aria-pressed", String(notifies()));
  button.textContent = notifies() ? "Notifications on" : "Notify me";
  button.disabled = possible() && Notification.permission === "denied";
  button.title = button.disabled ? "notifications are blocked in this browser's settings for this address" : "when a run ends, fails or warns, while this page is open";
}

const button = byId("notify");
if (button) {
  label(button);
  button.addEventListener("click", async () => {
    const on = !notifies() && (await Notification.requestPermission()) === "granted";
    localStorage.setItem("notify", on ? "on" : "off");
    label(button);
  });
}
