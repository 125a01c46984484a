/** The list of conversations. */

import { ask } from "./ask.js";
import { $, button, element } from "./elements.js";

const WIDE = "(min-width: 60rem)"; // as in style.css

/**
 * @typedef {{open: (id: string) => void, rename: (id: string, title: string) => void, remove: (id: string) => void,
 *   clear: () => void}} ListHandlers what is done when somebody chooses, and has agreed.
 */

function item({ id, title }, current, handlers) {
  const rename = async () => {
    const given = await ask("New name for this conversation", { yes: "Rename", value: title });
    if (given?.trim()) handlers.rename(id, given);
  };
  const remove = async () => {
    if ((await ask(`Delete “${title}”? This cannot be undone.`, { yes: "Delete" })) !== null) handlers.remove(id);
  };
  const open = button(title, () => handlers.open(id), { className: "title", dir: "auto" });
  if (current) open.setAttribute("aria-current", "true");
  const named = (label, press) => {
    const made = button(label, press, { className: "small" });
    made.setAttribute("aria-label", `${label} “${title}”`);
    return made;
  };
  return element("li", {}, open, named("Rename", rename), named("Delete", remove));
}

/**
 * Shows the list.
 * @param {Conversations} kept
 * @param {ListHandlers} handlers
 */
export function showList(kept, handlers) {
  const had = $("kept").contains(document.activeElement);
  $("conversations").replaceChildren(...kept.list.map((each) => item(each, each.id === kept.current.id, handlers)));
  $("kept-count").textContent = kept.list.length ? ` (${kept.list.length})` : "";
  $("delete-all").hidden = kept.list.length === 0;
  $("kept-hint").textContent = kept.lasts
    ? "Stored only in this browser, until you delete them."
    : "This browser stores nothing for this page: closing it deletes the conversations.";
  if (had && !$("kept").contains(document.activeElement)) $("kept-title").focus();
}

/** Listens to the buttons around the list; it is open beside the page, where there is room. */
export function startList(kept, handlers) {
  const wide = matchMedia(WIDE);
  const fit = () => ($("kept").open = wide.matches);
  wide.addEventListener("change", fit);
  fit();
  $("delete-all").addEventListener("click", async () => {
    const text = `Delete all conversations (${kept.list.length})? This cannot be undone.`;
    if ((await ask(text, { yes: "Delete all" })) !== null) handlers.clear();
  });
}
