/** The part of the page where a file is chosen: dropped, picked, at an address, or kept from an earlier visit. */

import { GlinferError } from "../glinfer/errors.js";
import { computingCanvas, missing, openContext } from "../glinfer/limits.js";
import { $, button, element, keepText, keptText } from "../page/elements.js";
import { megabytesOf } from "./programs.js";

const REMEMBERED = "glinfer-dropped"; // in localStorage, by the page's address
const GIGABYTE = 1e9;
const key = () => `${REMEMBERED} ${new URL(".", document.baseURI).pathname}`;

/** The model that the browser has kept, or null. */
export function remembered() {
  try {
    const { name, fingerprint } = JSON.parse(keptText("localStorage", key()));
    return { name, fingerprint };
  } catch {
    return null; // there is none, or other scripts of this origin changed it
  }
}

/** Remembers the model that the browser keeps; null forgets it. */
export function remember(model) {
  keepText("localStorage", key(), model && JSON.stringify(model));
}

/**
 * What this device lacks for a shape, in sentences; empty where nothing is known to be missing.
 * @param {object} shape an entry of `shapes`.
 * @param {WebGL2RenderingContext|null} gl
 * @param {boolean} minimum see `missing` in ../glinfer/limits.js.
 * @returns {{lacks: string[], doubts: string}}
 */
function fitOf({ requires, bytes }, gl, minimum) {
  const memory = /** @type {any} */ (navigator).deviceMemory; // in GiB and at most 8, where the browser tells it
  const doubts = memory < 8 && bytes.all > (memory / 2) * GIGABYTE ? `This device has about ${memory} GB of memory, which may be too little.` : "";
  return { lacks: missing(gl, requires, { minimum }), doubts };
}

/** The chooser, which is shown until a model is loaded. */
export class Chooser {
  /**
   * @param {object[]} shapes that the site has programs for.
   * @param {boolean} minimum see `missing` in ../glinfer/limits.js.
   */
  constructor(shapes, minimum) {
    this.minimum = minimum;
    this.gl = openContext(computingCanvas());
    this.choose = () => {};
    this.waiting = null; // what was chosen while a download waited for consent
    const file = element("input", { type: "file", id: "file", accept: ".gguf", multiple: true });
    file.addEventListener("click", () => (file.value = "")); // the same file may be chosen again
    file.addEventListener("change", () => file.files.length && this.choose({ gguf: [...file.files] }));
    const address = element("input", { type: "text", id: "address", placeholder: "https://hf.co/…/model.gguf", autocomplete: "off", spellcheck: false });
    const form = element("form", { id: "address-form", className: "row" });
    form.append(element("label", {}, "Or enter the address of one ", address), element("button", { type: "submit", textContent: "Look" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (address.value.trim()) this.choose({ gguf: address.value });
    });
    this.kept = element("div", { className: "row" });
    this.found = element("div", { id: "found", className: "row" });
    this.found.setAttribute("role", "status");
    const zone = element("label", { id: "zone", htmlFor: "file" }, element("strong", { textContent: "Drop a GGUF file here" }), " (all parts of it, if it has several), or choose from this computer: ", file);
    const hint = "The model runs on this computer, inside this page. The file is read here and sent nowhere. Browsers do not report how much graphics memory is free.";
    this.section = element("section", { id: "drop" }, this.kept, zone, form, this.found, element("p", { className: "hint", textContent: hint }), this.table(shapes));
    this.section.setAttribute("aria-label", "Choose a model");
    document.head.append(element("link", { rel: "stylesheet", href: "drop/drop.css" }));
    $("welcome").before(this.section);
    for (const type of ["dragover", "drop"]) document.addEventListener(type, (event) => this.dragged(event));
  }

  dragged(event) {
    if (this.section.hidden || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // or the browser would open the file
    if (event.type === "drop" && event.dataTransfer.files.length) this.choose({ gguf: [...event.dataTransfer.files] });
  }

  /** The models that this page runs, what each takes, and whether this device can hold it. */
  table(shapes) {
    const rows = shapes.map((shape) => {
      const { lacks, doubts } = fitOf(shape, this.gl, this.minimum);
      return element("li", { className: lacks.length ? "lacking" : "" }, `${shape.name}: ${megabytesOf(shape)}. ${[...lacks, doubts].join(" ")}`);
    });
    const made = element("details", {}, element("summary", { textContent: "Models that this page runs, and their graphics memory" }), element("ul", {}, ...rows));
    made.addEventListener("toggle", () => made.scrollIntoView({ block: "start" }));
    return made;
  }

  /** What was chosen: the files or an address, or the fingerprint of a kept model. */
  async next() {
    this.section.hidden = false;
    if (this.waiting) {
      const given = this.waiting;
      this.waiting = null;
      return given;
    }
    const known = remembered();
    this.kept.replaceChildren(...(known ? [button(`Open ${known.name} again`, () => this.choose({ kept: known.fingerprint }), { id: "again" })] : []));
    return new Promise((resolve) => (this.choose = resolve));
  }

  /**
   * Says what a file is and takes, before it is loaded; the download of one at an address waits for consent.
   * @param {{file: object, shape: object}} examined
   * @returns {Promise<boolean>} false where another file was chosen instead.
   * @throws {GlinferError} this device cannot hold the model.
   */
  async confirm({ file, shape }) {
    const { lacks, doubts } = fitOf(shape, this.gl, this.minimum);
    if (lacks.length) throw new GlinferError(lacks.join(" "));
    const megabytes = Math.ceil(file.bytes / 1e6).toLocaleString("en");
    const download = file.local ? "" : ` ${megabytes} MB are downloaded.`;
    const words = `${file.name} is ${shape.name}. It takes ${megabytesOf(shape)} of graphics memory.${download} ${doubts}`.trim();
    this.found.replaceChildren(element("span", { textContent: words }));
    if (file.local) return true;
    return new Promise((resolve) => {
      this.choose = (given) => {
        this.waiting = given;
        resolve(false);
      };
      this.found.append(button("Download and open", () => resolve(true), { id: "download" }));
    });
  }

  close() {
    this.section.hidden = true;
    this.found.replaceChildren();
  }
}
