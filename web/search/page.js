/** The search page: files in, passages with their vectors kept in this tab, and the nearest ones to a query. */

import { load } from "../embedding/embed.js";
import { GlinferError } from "../glinfer/errors.js";
import { progressInWords } from "../glinfer/loading.js";
import { sentence } from "../page/elements.js";
import { keepPage, leavePage } from "../page/offline.js";
import { startTheme } from "../page/theme.js";
import { nearest, passagesOf } from "./passages.js";

const LARGEST = 8e6; // bytes of a file
const AT_ONCE = 128; // passages between two looks at the queries
const SHOWN = 10;
const LETTERS = 16; // a passage with more of them a token is cut unread
const NAMED = 5; // files that were left out

const $ = (id) => document.getElementById(id);

function element(tag, name, text) {
  // Texts of files go into the page as text alone, never as HTML.
  return Object.assign(document.createElement(tag), { className: name, textContent: text });
}

function counted(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}

/** The text of a file, or null where it is none. */
async function textOf(file) {
  if (file.size > LARGEST) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null; // no UTF-8, or a folder that was dropped
  }
}

class SearchPage {
  constructor(asked) {
    this.asked = asked;
    this.minimum = asked.get("minimum") === "1";
    this.passages = []; // {text, line, file}
    this.vectors = []; // of the first passages
    this.reading = null; // the AbortController of what is being read
    this.scoring = null; // that of passages which are compared with a query
    this.unanswered = ""; // a query from while files are read
    /** What automated tests look at; `ready` gives the model, or null where `errors` says why there is none. */
    this.shared = { model: null, plan: null, errors: [], ready: null, page: this };
  }

  say(text) {
    $("status").textContent = text;
  }

  showError(error) {
    const known = error instanceof GlinferError;
    if (!known) console.error(error);
    const { message } = error;
    const text = sentence(known ? message : `Something went wrong: ${error}`);
    this.shared.errors.push(text);
    $("problem").textContent = text;
    $("problem").hidden = false;
  }

  /** Gets the model ready. */
  async open() {
    const canvas = document.createElement("canvas");
    canvas.addEventListener("webglcontextlost", () => {
      this.close();
      this.showError(new GlinferError("the browser dropped the graphics context; reload the page to continue"));
    });
    await leavePage(this.asked);
    const inWords = progressInWords();
    const options = { canvas, minimum: this.minimum, onProgress: (progress) => this.say(inWords(progress)) };
    const model = await load(new URL(".", document.baseURI), { ...options, onPlan: (plan) => this.describe(plan) });
    this.model = this.shared.model = model;
    for (const id of ["folder", "files", "send"]) $(id).disabled = false;
    this.say("Ready. Choose a folder with texts, or some files.");
    keepPage(model.plan, this.asked);
    return model;
  }

  describe(plan) {
    const { name, parameters, weights } = plan.model;
    this.shared.plan = plan;
    document.title = `${name} – glinfer`;
    $("about").textContent =
      `Search your texts by meaning. The model, ${name}, runs on this computer, inside this page; your texts stay here.`;
    $("facts").textContent =
      `${name} has ${(parameters / 1e6).toFixed(1)} million numbers (parameters), stored as ${weights}, and runs with WebGL2.`;
  }

  /** Nothing more can be run. */
  close() {
    this.reading?.abort();
    this.scoring?.abort();
    for (const id of ["folder", "files", "send", "forget"]) $(id).disabled = true;
    this.say("Stopped.");
  }

  /**
   * Reads files, and embeds their passages beside those that are there; they can be searched meanwhile.
   * @param {File[]} files
   */
  async read(files) {
    if (!this.model || this.reading || !files.length) return;
    this.reading = new AbortController();
    const { signal } = this.reading;
    for (const id of ["folder", "files", "forget"]) $(id).disabled = true;
    $("stop").disabled = false;
    for (const id of ["left-out", "problem"]) $(id).hidden = true;
    $("progress").removeAttribute("value");
    $("reading").hidden = false;
    try {
      await this.split(files, signal);
      await this.embed(signal);
    } catch (error) {
      if (error.name !== "AbortError") this.showError(error);
    } finally {
      this.passages.length = this.vectors.length;
      this.reading = null;
      $("stop").disabled = true;
      $("reading").hidden = true;
      if (!this.model.replay.gl.isContextLost()) {
        for (const id of ["folder", "files", "forget"]) $(id).disabled = false;
        this.say(`${counted(this.vectors.length, "passage")} can be searched.`);
        if (this.unanswered) await this.search(this.unanswered);
      }
    }
  }

  /** Cuts files into passages. */
  async split(files, signal) {
    const leftOut = [];
    const { tokenizer } = this.model;
    const before = this.model.prompt(this.promptName());
    const fits = (text) => text.length <= LETTERS * tokenizer.most && tokenizer.fits(before + text);
    const sorted = files.map((file) => [file.webkitRelativePath || file.name, file]);
    sorted.sort(([one], [other]) => (one < other ? -1 : 1));
    this.leaveOut(new Set(sorted.map(([name]) => name)));
    for (const [name, file] of sorted) {
      signal.throwIfAborted();
      if (name.split("/").some((part) => part.startsWith("."))) continue; // as files that a system hides
      this.say(`Reading ${name}…`);
      const text = await textOf(file);
      if (text === null) {
        leftOut.push(name);
        continue;
      }
      for (const passage of passagesOf(text, fits)) {
        this.passages.push({ ...passage, file: name });
      }
    }
    if (!leftOut.length) return;
    const names = leftOut.slice(0, NAMED).join(", ") + (leftOut.length > NAMED ? " …" : "");
    $("left-out").textContent =
      `${counted(leftOut.length, "file")} skipped (not plain text in UTF-8, or longer than ${LARGEST / 1e6} MB): ${names}`;
    $("left-out").hidden = false;
  }

  /** Removes the passages of files that are read again. */
  leaveOut(names) {
    const stays = this.passages.map(({ file }) => !names.has(file));
    if (!stays.includes(false)) return;
    this.scoring?.abort();
    this.passages = this.passages.filter((_, index) => stays[index]);
    this.vectors = this.vectors.filter((_, index) => stays[index]);
  }

  /** The passages nearest to a query. */
  async nearest(query) {
    const { model } = this;
    if (!model.ranks) {
      const [vector] = await model.embed([query], { promptName: model.promptAmong("query"), normalize: true });
      return nearest(vector, this.vectors, SHOWN);
    }
    this.scoring?.abort();
    this.scoring = new AbortController();
    const onProgress = (done, all) => this.say(`${done} of ${counted(all, "passage")} compared with your question`);
    const texts = this.passages.slice(0, this.vectors.length).map(({ text }) => text);
    return (await model.rerank(query, texts, { signal: this.scoring.signal, onProgress })).slice(0, SHOWN);
  }

  promptName() {
    return this.model.promptAmong("document", "passage");
  }

  /** Makes the vectors of the passages that have none; a model that scores pairs waits for the query. */
  async embed(signal) {
    const { passages, vectors } = this;
    if (this.model.ranks) vectors.length = passages.length;
    const [first, start] = [vectors.length, performance.now()];
    while (vectors.length < passages.length) {
      const part = passages.slice(vectors.length, vectors.length + AT_ONCE).map(({ text }) => text);
      const done = vectors.length;
      const onProgress = (count) => {
        $("progress").max = passages.length - first;
        $("progress").value = done + count - first;
        const speed = (done + count - first) / ((performance.now() - start) / 1000);
        this.say(`${done + count} of ${counted(passages.length, "passage")}, ${speed.toFixed(0)} a second`);
      };
      vectors.push(...(await this.model.embed(part, { promptName: this.promptName(), normalize: true, signal, onProgress })));
    }
  }

  /** Shows the passages nearest to the query. */
  async search(query = $("query").value.trim()) {
    if (!this.model || !query) return;
    this.unanswered = this.reading ? query : "";
    if (!this.vectors.length) {
      if (!this.reading) this.say("There are no texts yet. Choose a folder with texts, or some files.");
      return;
    }
    $("problem").hidden = true;
    try {
      const found = await this.nearest(query);
      const items = found.map(({ index, score }) => {
        const { text, line, file } = this.passages[index];
        const item = document.createElement("li");
        item.append(element("span", "score", score.toFixed(3)), element("span", "where", `${file}, line ${line}`));
        item.append(element("p", "passage", text));
        return item;
      });
      $("found").replaceChildren(...items);
      if (!this.reading) this.say(`The nearest ${items.length} of ${counted(this.vectors.length, "passage")}.`);
    } catch (error) {
      if (error.name !== "AbortError") this.showError(error);
    }
  }

  forget() {
    this.scoring?.abort();
    this.passages = [];
    this.vectors = [];
    $("found").replaceChildren();
    for (const id of ["folder", "files"]) $(id).value = "";
    for (const id of ["left-out", "problem"]) $(id).hidden = true;
    $("forget").disabled = true;
    this.say("Ready. Choose a folder with texts, or some files.");
  }

  /** Listens to the person. */
  start() {
    addEventListener("error", ({ message }) => this.shared.errors.push(message));
    addEventListener("unhandledrejection", ({ reason }) => this.shared.errors.push(String(reason)));
    $("waiting").remove();
    startTheme($("theme"), () => {});
    for (const id of ["folder", "files"]) {
      $(id).addEventListener("click", () => ($(id).value = "")); // the same files may be chosen again
      $(id).addEventListener("change", () => this.read(Array.from($(id).files)));
    }
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search();
    });
    $("stop").addEventListener("click", () => this.reading?.abort());
    addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.reading?.abort();
      this.scoring?.abort();
    });
    $("forget").addEventListener("click", () => this.forget());
    const over = (event) => {
      event.preventDefault(); // else the browser would leave the page for the file
      $("texts").classList.toggle("over", event.type === "dragover");
    };
    for (const kind of ["dragover", "dragleave", "drop"]) addEventListener(kind, over);
    addEventListener("drop", (event) => this.read(Array.from(event.dataTransfer.files)));
    this.shared.ready = this.open().catch((error) => {
      this.say("This model cannot run here.");
      this.showError(error);
      return null;
    });
  }
}

/**
 * Starts the page.
 * @param {URLSearchParams} asked `minimum=1` allows no more than WebGL2 promises.
 */
export function startSearch(asked) {
  const page = new SearchPage(asked);
  window.glinfer = page.shared;
  page.start();
}
