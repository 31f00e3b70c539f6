// What the pages' scripts share. Whatever comes from a run is put into a page as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const say = (line) => { byId("said").textContent = line || ""; };

// The page's own state is in its address: a reload, or whoever is given it, sees the same.
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

export async function ask(what, parameters = {}) {
  let answer;
  try {
    answer = await fetch(link(`/data/${what}`, parameters));
  } catch {
    throw new Error("the server does not answer: is `vigneron view` still running?");
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.error || (answer.status === 401 ? "open the address that the terminal shows" : `the server answers ${answer.status}`));
  return said;
}

// Again and again, one at a time; not while nobody looks.
export function keepDoing(work, seconds) {
  const turn = async () => {
    if (!document.hidden) await attempt(work);
    setTimeout(turn, seconds * 1000);
  };
  turn();
}

export async function attempt(work) {
  try {
    await work();
  } catch (error) {
    say(error.message);
  }
}

export function later(work, milliseconds = 200) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt(() => work(...given)), milliseconds);
  };
}

export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : value.toPrecision(4).replace(/\.?0+$/, "");
}

const STATES = { running: "good", finished: "", starting: "good", stopped: "quiet", failed: "bad", killed: "bad" };
export const state = (name) => make("span", { class: `state ${STATES[name] ?? ""}` }, name);

export function ago(seconds) {
  if (!seconds) return "";
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  for (const [size, unit] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const count = Math.floor(passed / size);
    if (count) return `${count} ${unit}${count === 1 ? "" : "s"} ago`;
  }
  return "just now";
}
