/** The form's settings. */

import { $ } from "./elements.js";

function showTemperature() {
  $("temperature-value").textContent = $("temperature").value;
}

/**
 * @typedef {{count: number, temperature: number, topK: number, topP: number, minP: number, repetitionPenalty: number,
 *   seed: number|null, system: string, speculate: "ngram"|null}} Settings `system`: the system prompt, for a model that takes
 *   one; `speculate`: how tokens are drafted.
 *
 * @returns {Settings} what the form says.
 */
export function settings() {
  const number = (id) => Number($(id).value);
  return {
    count: number("length"),
    temperature: number("temperature"),
    topK: number("top-k"),
    topP: number("top-p"),
    minP: number("min-p"),
    repetitionPenalty: number("penalty"),
    seed: $("seed").value.trim() === "" ? null : number("seed"),
    system: $("system-field").hidden ? "" : $("system").value,
    speculate: $("speculate").checked && !$("speculate").disabled ? "ngram" : null,
  };
}

/**
 * Shows a model's own settings.
 * @param {object} sampling by the names of glinfer's options.
 */
export function showSampling({ temperature, top_k: topK, top_p: topP, min_p: minP, repetition_penalty: penalty }) {
  Object.entries({ temperature, "top-k": topK, "top-p": topP, "min-p": minP, penalty }).forEach(([id, value]) => {
    if (id === "temperature") $(id).max = String(Math.max(2, value));
    $(id).value = $(id).defaultValue = String(value);
  });
  showTemperature();
}

/** Listens to the form; an empty number becomes its default again, since 0 would mean something else. */
export function startSettings() {
  for (const field of document.querySelectorAll("#settings input[type=number]")) {
    field.addEventListener("change", () => field.value || (field.value = field.defaultValue));
  }
  $("temperature").addEventListener("input", showTemperature);
}
