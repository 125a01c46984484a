/** Light and dark: as the system has it, until somebody chooses. */

const THEME = "glinfer-theme";

function remembered() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null; // a page opened from a file may have no storage
  }
}

function remember(theme) {
  try {
    localStorage.setItem(THEME, theme);
  } catch {
    // then it lasts until the page is closed
  }
}

/**
 * Shows a theme, and lets a button change it.
 * @param {HTMLButtonElement} button
 * @param {() => void} onChange called when other colours are shown.
 */
export function startTheme(button, onChange) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = remembered();
  const show = () => {
    const theme = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light theme" : "Dark theme"; // what a click gives
    onChange();
  };
  dark.addEventListener("change", show);
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    remember(chosen);
    show();
  });
  show();
}
