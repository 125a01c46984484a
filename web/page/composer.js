/** The field in which a message is written: what sends and stops it, and the work that is done meanwhile. */

import { asking } from "./ask.js";
import { $ } from "./elements.js";
import { settings } from "./settings.js";

const PAUSE = 400; // milliseconds after the last letter

/**
 * Lets the engine run what is known of the next prompt, if it can and has nothing else to do.
 * @param {import("./page.js").Page} page
 */
export function runAhead(page) {
  if (page.idle && page.chats) page.engine.prepare?.(page.turns, $("message").value, settings());
}

/**
 * Listens to the person who writes.
 * @param {import("./page.js").Page} page
 */
export function startComposer(page) {
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    page.send();
  });
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    page.send();
  });
  const stop = () => {
    page.queue(false);
    page.running?.abort();
  };
  $("stop").addEventListener("click", stop);
  addEventListener("keydown", (event) => event.key === "Escape" && !asking() && stop());
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(() => runAhead(page), PAUSE);
  };
  for (const id of ["message", "system"]) $(id).addEventListener("input", later);
}
