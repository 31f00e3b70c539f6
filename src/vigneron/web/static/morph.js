// Refreshing a part of a page in place: what has the focus keeps it, what is open stays open, a selection stays.

const keyOf = (node) => node.dataset?.key;
const REMEMBERED = new Set(["open"]); // set by the reader, not by the data

/** Make the children of `parent` like `fresh`. Elements with the same `data-key` are the same one; so are elements of one
kind at the same place. Listeners stay those of the first drawing. What is within `data-kept` is left alone. */
export function morph(parent, ...fresh) {
  const focused = document.activeElement;
  patch(parent, fresh.filter((child) => child !== null && child !== undefined));
  if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true }); // moving it took the focus
}

function patch(parent, fresh) {
  const kept = new Map([...parent.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let at = parent.firstChild;
  for (const child of fresh) {
    const same = keyOf(child) ? kept.get(keyOf(child)) : at && !keyOf(at) ? at : null;
    if (!same || same.nodeName !== child.nodeName) {
      parent.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else parent.insertBefore(same, at);
    sync(same, child);
  }
  while (at) {
    const following = at.nextSibling;
    at.remove();
    at = following;
  }
}

function sync(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-kept")) return;
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name) && !REMEMBERED.has(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) if (old.getAttribute(name) !== fresh.getAttribute(name)) old.setAttribute(name, fresh.getAttribute(name));
  if (old.nodeName === "INPUT") Object.assign(old, { checked: fresh.checked, disabled: fresh.disabled });
  patch(old, [...fresh.childNodes]);
}
