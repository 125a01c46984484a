/** The conversations of this page, of which one is open. Other tabs may change them too. */

import { GlinferError } from "../glinfer/errors.js";
import { keepText, keptText } from "./elements.js";

const LONGEST_TITLE = 60; // characters
const OPEN = "glinfer-conversation";

/** Which conversation this tab has open, while it is loaded again. */
export const THIS_TAB = {
  remembered: () => keptText("sessionStorage", OPEN),
  remember: (id) => keepText("sessionStorage", OPEN, id),
};

/** A conversation that nobody has begun, see store.js. @returns {Saved} */
function blank() {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, revision: 0, changed: 0, title: "", named: false, system: "", turns: [] };
}

/** The title of a conversation that has none of its own: how it begins. */
function titleOf({ turns }) {
  const words = (turns[0]?.message ?? "").trim().replace(/\s+/g, " ");
  const letters = Array.from(words);
  return letters.length > LONGEST_TITLE ? `${letters.slice(0, LONGEST_TITLE - 1).join("")}…` : words;
}

/** See the head of this file. */
export class Conversations {
  /**
   * @param {Store} store where they are kept.
   * @param {{remembered: () => string|null, remember: (id: string) => void}} tab which one this tab has open.
   */
  constructor(store, tab) {
    Object.assign(this, { store, tab });
    /** @type {Saved} the one that is open. */
    this.current = blank();
    /** @type {Saved[]} those that are kept, the latest first. */
    this.list = [];
    /** Tells other tabs that something was changed; a page may set it. */
    this.announce = () => {};
    this.saving = Promise.resolve(); // one after another
  }

  get lasts() {
    return this.store.lasts;
  }

  /** Finds what is kept, and opens what this tab had open before it was loaded again. */
  async start() {
    await this.refresh();
    const id = this.tab.remembered();
    if (id && this.list.some((each) => each.id === id)) await this.open(id);
  }

  /** Reads the list again. */
  async refresh() {
    this.list = (await this.store.all()).sort((one, other) => other.changed - one.changed);
  }

  /** Opens a new one, which is kept once it is saved. */
  begin() {
    this.current = blank();
    this.tab.remember("");
  }

  /**
   * Opens one that is kept.
   * @throws {GlinferError} it is there no more.
   */
  async open(id) {
    const found = await this.store.get(id);
    if (!found) {
      await this.refresh();
      throw new GlinferError("this conversation was deleted in another tab; choose another one");
    }
    this.current = found;
    this.tab.remember(id);
  }

  /**
   * Keeps one as it is now. Where another tab has changed or deleted it meanwhile, it is kept as a new one.
   * @param {Saved} current the one that is open, or was.
   * @returns {Promise<boolean>} whether it is the same one still.
   * @throws {Error} the browser has no room.
   */
  save(current = this.current) {
    const done = this.saving.then(async () => {
      if (!current.named) current.title = titleOf(current);
      const version = () => ({ ...current, revision: current.revision + 1, changed: Date.now() });
      const same = await this.store.put(version());
      if (!same) {
        Object.assign(current, { id: blank().id, revision: 0 });
        await this.store.put(version());
      }
      current.revision += 1;
      if (current === this.current) this.tab.remember(current.id);
      await this.changed();
      return same;
    });
    this.saving = done.catch(() => {});
    return done;
  }

  /** Gives one another title. */
  async rename(id, title) {
    const named = { title: title.trim(), named: true };
    if (id === this.current.id) {
      Object.assign(this.current, named);
      await this.save();
      return;
    }
    const found = await this.store.get(id);
    if (found) await this.store.put({ ...found, ...named, revision: found.revision + 1 });
    await this.changed();
  }

  /** Deletes one; where it was open, a new one replaces it. */
  async remove(id) {
    await this.saving;
    await this.store.remove(id);
    if (id === this.current.id) this.begin();
    await this.changed();
  }

  /** Deletes all. */
  async clear() {
    await this.saving;
    await this.store.clear();
    this.begin();
    await this.changed();
  }

  async changed() {
    await this.refresh();
    this.announce();
  }

  /**
   * Looks at what another tab did, while nothing is written here.
   * @returns {Promise<"same"|"changed"|"deleted">} what became of the one that is open, which is now as the other tab has it.
   */
  async follow() {
    await this.refresh();
    const { current } = this;
    if (current.revision === 0) return "same";
    const found = await this.store.get(current.id);
    if (found?.revision === current.revision) return "same";
    if (found) this.current = found;
    else this.begin();
    return found ? "changed" : "deleted";
  }
}
