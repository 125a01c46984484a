/**
 * The model that an exported site has beside its page, run by the browser itself, and the conversation with it. It runs in a
 * worker (worker.js) or in the page (browser.js has it there), and knows neither the page nor its elements.
 */

import { Beginning, beginningOf, commonLength } from "../glinfer/beginning.js";
import { Conversation } from "../glinfer/chat.js";
import { replyParts } from "../glinfer/generate.js";
import { keptNote } from "../glinfer/kept.js";
import { computingCanvas, lossOf, rendererOf } from "../glinfer/limits.js";
import { load } from "../glinfer/model.js";
import { pictureName, readAttention } from "../glinfer/pictures.js";
import { IdTokenizer } from "../glinfer/tokenizer.js";

/** WebGL2 in this browser, in this thread. */
export class LocalEngine {
  /** @param {typeof load} loadModel gives the model. */
  constructor(loadModel = load) {
    this.loadModel = loadModel;
    this.model = null;
    this.wish = null; // the picture that is wanted of the next token
    this.preparing = null; // what was begun last to be run ahead
    this.canvas = computingCanvas();
  }

  /** Ends when the browser takes the graphics context away. */
  untilLost() {
    return lossOf(this.canvas);
  }

  /**
   * Loads the model of a site.
   * @param {string} base the site's address.
   * @param {import("../glinfer/loading.js").LoadOptions} options
   * @returns {Promise<object>} the kind of input and the options, see `Page.ready`.
   */
  async open(base, options) {
    this.model = await this.loadModel(base, { canvas: this.canvas, ...options });
    const { tokenizer, form, context, plan } = this.model;
    this.conversation = new Conversation(tokenizer ?? new IdTokenizer(), form, context, plan.model.stop_ids);
    this.encoded = new Map(); // turns by their texts, as the conversation has them
    const { cache = true } = options;
    this.beginning = new Beginning(this.model, cache ? keptNote(base, plan.files.fingerprint, "beginning") : null);
    await this.beginning.restore();
    return { ...takesOf(this.model), drafts: this.model.drafts };
  }

  get lost() {
    return this.model.replay.gl.isContextLost();
  }

  get figures() {
    const { ids, context, drawsIssued, ahead, plan } = this.model;
    return { held: ids.length, context, draws: drawsIssued - ahead * plan.model.draws_per_token };
  }

  /**
   * See `Engine` in page.js. Each piece has the `figures` of its moment. The number of the picture that is wanted, or null,
   * is `wish`, and from then on what `next` is given; pieces of the kind `picture` have it, and its `attention`.
   */
  async *write(turns, { count, system, ...sampling }, { signal, wish = null }) {
    const { model, conversation, encoded } = this;
    this.preparing = null;
    const { message } = turns.at(-1);
    conversation.turns = conversation.form ? turns.slice(0, -1).map((turn) => this.encode(turn)) : [];
    const prompt = conversation.prompt(message, this.reserved(count), { system });
    const left = conversation.turns.length - (conversation.open?.past ?? conversation.turns).length;
    if (left) yield { kind: "left", text: "", tokens: 0, left, figures: this.figures };
    const written = [];
    let answer = "";
    const seen = [];
    this.wish = wish;
    const options = { maxTokens: count, signal, watch: () => this.watched(seen), ...sampling };
    try {
      for await (const { kind, text, id } of replyParts(model, conversation, prompt, options)) {
        if (this.lost) return; // what was read then are no logits
        if (id !== null) written.push(id);
        if (kind === "answer") answer += text;
        for (const picture of seen.splice(0)) yield { kind: "picture", text: "", tokens: 0, ...picture, figures: this.figures };
        this.wish = (yield { kind, text, tokens: id === null ? 0 : 1, figures: this.figures }) ?? null;
      }
    } catch (error) {
      if (!this.lost) throw error; // `lost` reports a lost context to the page
    } finally {
      conversation.addReply(written);
      if (conversation.form) encoded.set(keyOf({ message, answer }), conversation.turns.at(-1));
    }
  }

  /** How many tokens are reserved for a reply of at most `count`. */
  reserved(count) {
    return Math.min(count, Math.max(1, Math.floor(this.model.context / 2)));
  }

  /** A turn as the conversation has it: with the tokens that were written, or those of its text. */
  encode(turn) {
    const { message, answer: text } = turn;
    const known = this.encoded.get(keyOf(turn));
    return known ?? { message, ids: this.conversation.form.encodeMessage(message), reply: [], text };
  }

  /** What `Model.logits` is to watch where the page wants a picture of the next token. */
  watched(found) {
    const { wish } = this;
    if (wish === null) return null;
    const picture = this.model.plan.pictures[wish];
    return { draw: picture.draw, seen: () => found.push({ picture: wish, attention: readAttention(this.model, picture) }) };
  }

  /**
   * Runs what is known of the next prompt, and keeps what every conversation begins with; a message ends that.
   * @param {object[]} turns those of the conversation.
   * @param {string} written what there is of the message.
   * @param {{count: number, system: string}} settings
   */
  async prepare(turns, written, { count, system }) {
    const { model, beginning, conversation: { form } } = this;
    if (!form || model.writing) return;
    const mine = (this.preparing = {});
    const known = beginningOf(form, system, turns.map((turn) => this.encode(turn)), written);
    const fits = known.length + this.reserved(count) <= model.context; // or the oldest turns would be left out
    const first = beginningOf(form, system);
    const ids = fits ? known : first;
    if (!beginning.isHeld(ids)) {
      for (let work = model.hold(ids); !work.next().done; ) {
        await model.replay.finished();
        if (this.preparing !== mine || commonLength(model.ids, ids) < ids.length) return;
      }
    }
    await beginning.keep(first);
  }

  /** Forgets all but the beginning. */
  reset() {
    this.conversation?.reset();
    this.encoded?.clear();
    if (this.model) this.model.rewind(this.model.ids.length - commonLength(this.model.ids, this.beginning.ids));
  }

  /** Compares the model's textures with its files, see `Model.verifyTextures`. */
  verify() {
    return this.model.verifyTextures();
  }
}

function keyOf({ message, answer }) {
  return JSON.stringify([message, answer]);
}

function takesOf({ plan, tokenizer, form, why, context, replay: { gl } }) {
  const { chat, examples, config, draws_per_token: draws } = plan.model;
  const ofTokens = plan.pictures.some(({ name }) => name.includes(".head."));
  return {
    takes: form ? "chat" : tokenizer ? "text" : "ids",
    why,
    system: form?.takesSystem ?? false,
    vocabulary: config.vocab_size,
    examples: tokenizer && Boolean(form) === Boolean(chat) ? examples : [],
    context,
    draws,
    pictures: plan.pictures.map(({ name }) => pictureName(name)),
    lines: ofTokens ? "tokens" : "heads",
    renderer: rendererOf(gl),
  };
}
