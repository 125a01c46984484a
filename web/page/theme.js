/** Light and dark: as the system has it, until somebody chooses. */

import { keepText, keptText } from "./elements.js";

const THEME = "glinfer-theme";

/**
 * Shows a theme, and lets a button change it.
 * @param {HTMLButtonElement} button
 * @param {() => void} onChange called when other colours are shown.
 */
export function startTheme(button, onChange) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = keptText("localStorage", THEME);
  const show = () => {
    const theme = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light theme" : "Dark theme"; // what a click gives
    onChange();
  };
  dark.addEventListener("change", show);
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    keepText("localStorage", THEME, chosen);
    show();
  });
  show();
}
