/** The panel of settings: beside the chat where there is room, and over it elsewhere, until it is closed. */

import { $ } from "./elements.js";

const WIDE = "(min-width: 75rem)"; // as in style.css

/** Listens to the buttons that open and close the panel. */
export function startPanel() {
  const [panel, opener, wide] = [$("panel"), $("show-panel"), matchMedia(WIDE)];
  const show = (open) => {
    panel.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
  };
  const turn = (open) => {
    show(open);
    if (!wide.matches) (open ? $("hide-panel") : opener).focus();
  };
  opener.addEventListener("click", () => turn(panel.hidden));
  $("hide-panel").addEventListener("click", () => turn(false));
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || wide.matches) return;
    event.stopPropagation(); // which would stop the answer
    turn(false);
  });
  wide.addEventListener("change", () => show(wide.matches));
  show(wide.matches);
}
