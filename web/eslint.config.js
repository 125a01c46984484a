import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["dist/", "libraries/"] },
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2023, sourceType: "module", globals: globals.browser },
    rules: {
      eqeqeq: ["error", "always", { null: "ignore" }],
      "max-lines": ["error", 400],
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
    },
  },
  { files: ["tests/**/*.{js,mjs}", "tools/*.{js,mjs}", "eslint.config.js"], languageOptions: { globals: globals.node } },
];
