// Texts of all pages can be read: their colours on each background reach WCAG's ratio of 4.5, light and dark.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const STYLES = ["web/style.css", "web/tour/tour.css", "glinfer/templates/page.css"];
const TEXTS = ["ink", "text", "quiet", "accent", "alert", "warn"];
const PAPERS = ["paper", "page", "card", "field", "shade", "hover"];

function lightness(colour) {
  const digits = colour.length === 3 ? [...colour].map((digit) => digit + digit) : colour.match(/../g);
  const [red, green, blue] = digits.map((pair) => parseInt(pair, 16) / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

for (const path of STYLES) {
  test(`${path} has readable colours`, () => {
    const style = readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");
    const schemes = [...style.matchAll(/:root[^{]*\{([^}]*#[^}]*)\}/g)].map(([, rules]) => Object.fromEntries([...rules.matchAll(/--([\w-]+): #(\w+);/g)].map(([, name, colour]) => [name, colour])));
    assert.equal(schemes.length, 2, "light and dark");
    for (const colours of schemes) {
      const pairs = [["on-accent", "accent"], ...TEXTS.flatMap((text) => PAPERS.map((paper) => [text, paper]))].filter((pair) => pair.every((name) => name in colours));
      assert(pairs.length > 8);
      for (const pair of pairs) {
        const [less, more] = pair.map((name) => lightness(colours[name])).sort((one, other) => one - other);
        assert((more + 0.05) / (less + 0.05) >= 4.5, pair.join(" on "));
      }
    }
  });
}
