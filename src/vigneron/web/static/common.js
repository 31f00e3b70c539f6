// Shared by the pages' scripts. Text from a run is inserted as text, never as markup.

// The address with the token leads to one with a key, which the server wants with every request for data.
if (location.hash.startsWith("#key=")) {
  localStorage.setItem("key", location.hash.slice("#key=".length));
  history.replaceState(null, "", location.pathname + location.search);
}
export const keyed = () => ({ "X-Vigneron-Key": localStorage.getItem("key") ?? "" });

export const byId = (id) => document.getElementById(id);

// A list that this browser remembers, for this port.
export const remembered = {
  get(name) {
    try {
      const list = JSON.parse(localStorage.getItem(name) ?? "[]");
      return Array.isArray(list) ? list.filter((one) => typeof one === "string") : [];
    } catch {
      return [];
    }
  },
  set: (name, list) => localStorage.setItem(name, JSON.stringify(list)),
};

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const showMessage = (line) => { byId("message").textContent = line || ""; };

// The page's state is in its address: a reload or a shared link shows the same.
export const address = {
  get: (name, otherwise = "") => new URLSearchParams(location.search).get(name) ?? otherwise,
  all: (name) => new URLSearchParams(location.search).getAll(name),
  set(changes) {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) {
      query.delete(name);
      for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) query.append(name, one);
    }
    history.replaceState(null, "", `${location.pathname}${query.size ? "?" : ""}${query}`);
  },
};

export function link(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) query.append(name, one);
  }
  return `${path}?${query}`;
}

export async function fetchData(what, parameters = {}) {
  let answer;
  try {
    answer = await fetch(link(`/data/${what}`, parameters), { headers: keyed() });
  } catch {
    throw new Error("no answer from the server: is `vigneron view` still running?");
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || (answer.status === 401 ? "open the address printed in the terminal" : `the server answered with status ${answer.status}`));
  return body;
}

// Repeatedly, one call at a time. While the page is hidden: every ten seconds if `unseen` says so, else not at all.
export function poll(work, seconds, unseen = () => false) {
  let timer = null;
  const turn = async () => {
    clearTimeout(timer);
    timer = null;
    if (!document.hidden || unseen()) await attempt(work);
    timer = setTimeout(turn, (document.hidden ? 10 : seconds) * 1000);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && timer !== null) turn(); });
  turn();
}

export async function attempt(work) {
  try {
    await work();
  } catch (error) {
    showMessage(error.message);
  }
}

export function debounce(work, milliseconds = 200) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt(() => work(...given)), milliseconds);
  };
}

export function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

const STATES = { running: "good", finished: "", starting: "good", stopped: "quiet", failed: "bad", killed: "bad" };
export const state = (name) => make("span", { class: `state ${STATES[name] ?? ""}` }, name);

// The verdict on a run's held-out rows.
const VERDICTS = { better: "good", worse: "bad" };
export const verdictClass = (outcome) => VERDICTS[outcome?.verdict] ?? "";

export function ago(seconds) {
  if (!seconds) return "";
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  for (const [size, unit] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const count = Math.floor(passed / size);
    if (count) return `${count} ${unit}${count === 1 ? "" : "s"} ago`;
  }
  return "just now";
}
