/**
 * The chat page, over an engine: a model in the page itself (local.js) or models behind a server (../server/engine.js).
 *
 * @typedef {object} Engine
 * @property {string} name parts of the page with another `data-engine` are hidden.
 * @property {(page: Page) => Promise<object|null>} open gets a model ready, and tells the page by `describe` and `ready`;
 *   an error is shown.
 * @property {(turns: Turn[], settings: Settings, how: {signal: AbortSignal, watch: () => Wish|null}) =>
 *   AsyncIterable<{kind: string, text: string, tokens: number, left?: number}>} write replies to the last of the turns, or
 *   continues its text: pieces of kind `answer`, `thinking` or another, which is not shown, each with the number of its
 *   tokens; `left` is the number of oldest turns that do not fit into the context. An abort ends it at once, without an
 *   error. It asks `watch` before each token, if it can give pictures meanwhile.
 * @property {(() => Promise<object>)|undefined} load gets the model ready again after `Page.interrupted`.
 * @property {((picture: number) => Promise<Attention>)|undefined} attention what the last token of the last reply looks
 *   at; where an engine cannot give pictures while it writes.
 * @property {((turns: Turn[], written: string, settings: Settings) => void)|undefined} prepare may run ahead, while nobody
 *   waits, what is known of the next message, which is being written.
 * @property {() => void} reset forgets what it holds.
 * @property {boolean} lost whether nothing can be run any more.
 * @property {{held: number, context: number, draws: number|null}} figures tokens held, and draw calls issued so far.
 *
 * @typedef {{rows: number, cols: number, weights: Float32Array}} Attention
 * @typedef {{picture: number, seen: (attention: Attention) => void}} Wish
 */

import { GlinferError } from "../glinfer/errors.js";
import { AttentionView } from "./attention.js";
import { runAhead, startComposer } from "./composer.js";
import { Conversations, THIS_TAB } from "./conversations.js";
import { $, button, element, sentence } from "./elements.js";
import { showList, startList } from "./list.js";
import { Log } from "./log.js";
import { Meter } from "./meter.js";
import { settings, showSampling, startSettings } from "./settings.js";
import { startPanel } from "./panel.js";
import { openStore } from "./store.js";
import { startTheme } from "./theme.js";
import { invite, showCard } from "./welcome.js";

const RELOAD_PAUSE = 60_000; // minimum milliseconds between automatic reloads of a lost model
const SAVE_PAUSE = 2000; // milliseconds between two times that an answer is kept while it is written

/** The page's state, and what an engine may do with it. */
export class Page {
  /** @param {Engine} engine */
  constructor(engine) {
    this.engine = engine;
    this.running = null; // the AbortController of what is being written
    this.model = null; // what `describe` was told
    this.can = null; // what `ready` was told
    this.chats = true; // whether turns are shown as messages and replies
    this.left = 0; // how many of the oldest turns the model does not see
    this.failed = false; // whether the model cannot run here
    this.queued = false; // whether the message is sent when the model is ready
    this.stale = false; // whether another tab has changed something meanwhile
    this.reloaded = -Infinity; // when the model was loaded again
    this.kept = null; // the conversations
    this.attention = new AttentionView();
    this.log = new Log({
      edit: (index, message) => this.rewrite(index, message),
      again: (index) => this.rewrite(index, this.turns[index].message),
    });
    /**
     * What automated tests look at; `ready` gives the model, or null where `errors` says why there is none; `checks` are
     * the reports of checks of textures.
     */
    this.shared = { model: null, plan: null, errors: [], ready: null, checks: [], page: this };
    for (const each of document.querySelectorAll("[data-engine]")) each.hidden ||= each.dataset.engine !== engine.name;
  }

  /** The turns of the conversation that is open. */
  get turns() {
    return this.kept.current.turns;
  }

  /** Says in one line how things stand. */
  say = (text) => {
    $("status").textContent = text;
  };

  showProblems(sentences) {
    this.shared.errors.push(...sentences);
    $("problem").replaceChildren(element("ul", {}, ...sentences.map((text) => element("li", { textContent: text }))));
    $("problem").hidden = false;
  }

  showError(error) {
    const known = error instanceof GlinferError;
    if (!known) console.error(error);
    this.showProblems([known ? sentence(error.message) : `Something went wrong: ${error}`]);
  }

  /** Nothing can be run until the next `ready`, and why. */
  close(problem) {
    this.pause();
    this.say("Stopped.");
    this.showProblems([problem]);
  }

  /**
   * What the engine ran on was taken away: says so, and gets it ready again, at once unless that was just done.
   * @param {string} problem one sentence.
   */
  interrupted(problem) {
    this.close(problem);
    const again = button("Load the model again", () => this.reload());
    $("problem").append(again);
    if (performance.now() - this.reloaded > RELOAD_PAUSE) this.reload();
  }

  async reload() {
    this.reloaded = performance.now();
    try {
      await this.engine.load();
      this.say("The model was lost and has been loaded again. Unfinished replies can be regenerated.");
    } catch (error) {
      this.interrupted(sentence(error.message));
    }
  }

  /** Takes no messages until the next `ready`, and ends what is being written. */
  pause() {
    this.running?.abort();
    this.can = null;
    this.able();
  }

  /** Whether a message can be sent. */
  get idle() {
    return this.can !== null && !this.running && !this.engine.lost;
  }

  /** Lets the person do what can be done now, and the engine what will be needed. */
  able() {
    const { idle } = this;
    $("send").disabled = this.running !== null || this.failed;
    $("clear").disabled = !idle;
    $("look").disabled = !idle || this.turns.length === 0;
    $("stop").disabled = this.running === null;
    $("log").setAttribute("aria-busy", String(this.running !== null));
    $("kept-fields").disabled = this.running !== null;
    runAhead(this);
  }

  /**
   * Shows what is known of a model before it is ready.
   * @param {{name: string, about: string, card: [string, string][], sampling: object}} model `card`: facts with their
   *   names; `sampling`: its own settings, by the names of glinfer's options.
   */
  describe(model) {
    this.model = model;
    document.title = `${model.name} – glinfer`;
    $("about").textContent = model.about;
    showCard(model.card);
    showSampling(model.sampling);
  }

  /**
   * Takes messages from now on.
   * @param {{takes: "chat"|"text"|"ids", vocabulary: number, examples: string[], context: number, draws: number|null,
   *   pictures: string[], lines: "heads"|"tokens", system?: boolean, drafts?: boolean, why?: string, renderer?: string, tested?: string}}
   *   can the kind of input, whether a system prompt and speculation are possible, why only this, the pictures, the
   *   renderer, the result of its self-test.
   */
  ready(can) {
    this.can = can;
    this.chats = can.takes === "chat";
    $("system-field").hidden = !can.system;
    $("speculate").disabled = !can.drafts;
    showCard([...this.model.card, ["Runs on", can.renderer], ["Self-test", can.tested]]);
    this.attention.offer(can.pictures, can.lines);
    $("draws").textContent = String(can.draws ?? "–");
    $("length").max = String(can.context);
    invite(can, (text) => {
      $("message").value = text;
      this.send();
    });
    $("problem").hidden = true;
    this.showConversation();
    this.say("Ready.");
    $("message").focus();
    if (this.queued) this.send();
  }

  /** Shows the conversation that is open, which the engine holds nothing of. */
  showConversation() {
    this.log.show(this.turns, this.chats);
    this.log.markLeft((this.left = 0));
    $("system").value = this.kept.current.system;
    $("welcome").hidden = this.can === null || this.turns.length > 0;
    $("held").textContent = "0";
    showList(this.kept, this.handlers);
    this.able();
  }

  /** Writes the answer of the last turn of a conversation, which is in the log already. */
  async write(conversation, view) {
    const meter = new Meter(this.engine);
    const seen = conversation.turns.slice(this.left);
    let [begun, saved] = [false, performance.now()];
    this.say("Reading your text…");
    try {
      const how = { signal: this.running.signal, watch: this.attention.watch() };
      for await (const { kind, text, tokens, left } of this.engine.write(seen, settings(), how)) {
        if (tokens && !begun) this.say("Writing…");
        begun ||= tokens > 0;
        if (left) this.log.markLeft((this.left += left));
        if (text) this.log.grow(() => view.add(kind, text));
        meter.count(tokens);
        if (performance.now() - saved > SAVE_PAUSE) {
          this.save(conversation);
          saved = performance.now();
        }
      }
    } finally {
      meter.finish();
      this.log.grow(() => view.answer.show());
    }
  }

  /**
   * Writes a new last turn. Where nothing comes of it, the conversation is as it was.
   * @param {Turn[]} past the turns before it.
   * @param {string} message
   */
  async reply(past, message) {
    const conversation = this.kept.current;
    const [before, { left }] = [conversation.turns, this];
    const turn = { message, answer: "", thinking: "", model: this.model.name };
    conversation.turns = [...past, turn];
    const { signal } = (this.running = new AbortController());
    this.able();
    $("problem").hidden = $("welcome").hidden = true;
    this.log.keep(past.length);
    const view = this.log.add(turn, this.chats);
    let ended = false;
    try {
      await this.write(conversation, view);
      ended = !signal.aborted;
      this.say(ended ? "Done." : "Stopped.");
    } catch (error) {
      this.say("Stopped by an error.");
      this.showError(error);
    }
    const wrote = ended || turn.answer !== "" || turn.thinking !== "";
    if (!wrote) this.takeBack(conversation, before, message, left);
    this.running = null;
    $("spoken").textContent = wrote ? turn.answer : "";
    if (conversation.turns.length) await this.save(conversation);
    if (this.stale) await this.follow();
    this.able();
  }

  /** Makes a conversation what it was before a message, which can be sent again; the model sees what it saw. */
  takeBack(conversation, before, message, left) {
    conversation.turns = before;
    if (!$("message").value) $("message").value = message;
    if (conversation !== this.kept.current) return;
    this.log.show(before, this.chats);
    this.log.markLeft((this.left = left));
    $("welcome").hidden = before.length > 0;
  }

  /** Sends the message, or has it wait until the model is ready. */
  async send() {
    const message = $("message").value;
    this.queue(this.can === null && !this.failed && message.trim() !== "");
    if (this.can === null || this.running || !message.trim()) return;
    if (this.chats) $("message").value = "";
    await this.reply(this.turns, message);
  }

  /** Says whether the message is sent when the model is ready. */
  queue(waits) {
    this.queued = waits;
    $("queued").hidden = !waits;
  }

  /** Writes another answer to a message, which may be another one too; later turns are dropped. */
  async rewrite(index, message) {
    if (this.can === null || this.running) return;
    this.log.markLeft((this.left = 0));
    $("message").focus();
    await this.reply(this.turns.slice(0, index), message);
  }

  /** Keeps the conversation, and says where it cannot be. */
  async save(conversation = this.kept.current) {
    try {
      const same = await this.kept.save(conversation);
      showList(this.kept, this.handlers);
      if (!same) this.say("Another tab changed or deleted this conversation; this version is stored as a new one.");
    } catch (error) {
      this.showProblems([`This conversation cannot be stored: ${error.message}. Delete some others, or copy what you need.`]);
    }
  }

  /** Does something with the conversations, shows the one that is open then, and shows why it cannot be done. */
  async change(act) {
    if (this.running) return;
    try {
      await act();
      this.engine.reset();
      this.showConversation();
    } catch (error) {
      showList(this.kept, this.handlers);
      this.showError(error);
    }
  }

  handlers = {
    open: (id) => this.change(() => this.kept.open(id)).then(() => $("message").focus()),
    remove: (id) => this.change(() => this.kept.remove(id)),
    clear: () => this.change(() => this.kept.clear()),
    rename: (id, title) =>
      this.kept
        .rename(id, title)
        .catch((error) => this.showError(error))
        .then(() => showList(this.kept, this.handlers)),
  };

  /** Begins a new conversation. */
  startOver() {
    if (this.running) return;
    this.kept.begin();
    this.engine.reset();
    $("problem").hidden = true;
    this.showConversation();
    if (this.can) this.say("Ready.");
    $("message").focus();
  }

  /** Shows what another tab has changed, at once or when the answer is written. */
  async follow() {
    this.stale = this.running !== null;
    if (this.stale) return;
    const found = await this.kept.follow();
    if (found === "same") {
      showList(this.kept, this.handlers);
      return;
    }
    this.engine.reset();
    this.showConversation();
    if (found === "deleted") this.say("This conversation was deleted in another tab.");
  }

  /** Opens what is kept of earlier conversations. */
  async openConversations() {
    const name = `glinfer ${new URL(".", document.baseURI).pathname}`;
    this.kept = new Conversations(await openStore(name), THIS_TAB);
    await this.kept.start();
    if (globalThis.BroadcastChannel && this.kept.lasts) {
      const channel = new BroadcastChannel(name);
      channel.onmessage = () => this.follow();
      this.kept.announce = () => channel.postMessage(null);
    }
    startList(this.kept, this.handlers);
    this.showConversation();
  }

  /** Listens to the person, and gets everything ready. */
  start() {
    addEventListener("error", ({ message }) => this.shared.errors.push(message));
    addEventListener("unhandledrejection", ({ reason }) => this.shared.errors.push(String(reason)));
    $("waiting").remove();
    startTheme($("theme"), () => this.attention.repaint());
    startSettings();
    startPanel();
    startComposer(this);
    $("system").addEventListener("input", () => {
      this.kept.current.system = $("system").value;
      this.left = 0;
    });
    $("system").addEventListener("change", () => this.kept.current.revision && this.save());
    $("clear").addEventListener("click", () => this.startOver());
    $("look").addEventListener("click", () => this.attention.look(this));
    const open = this.openConversations().then(() => this.engine.open(this));
    this.shared.ready = open.catch((error) => {
      this.failed = true;
      this.queue(false);
      this.able();
      this.say("This model cannot run here.");
      this.showError(error);
      return null;
    });
  }
}

/**
 * Starts the page.
 * @param {Engine} engine what writes.
 */
export function startPage(engine) {
  const page = new Page(engine);
  window.glinfer = page.shared;
  page.start();
}
