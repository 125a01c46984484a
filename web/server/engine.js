/** Models behind `glinfer serve`. */

import { GlinferError } from "../glinfer/errors.js";
import { keepText, keptText } from "../page/elements.js";
import { ServerError } from "./client.js";
import { fitting } from "./conversation.js";

const KEY = "glinfer-key";
const LOADING_PAUSE = 1000;
const COUNTED = { include_usage: true, continuous_usage_stats: true };

const $ = (id) => document.getElementById(id);

/** An engine of the page, see page/page.js: the server that the page came from. */
export class ServerEngine {
  name = "server";
  lost = false;

  /** @param {Client} client */
  constructor(client) {
    this.client = client;
    this.model = null; // an entry of /v1/models
    this.held = 0;
    this.last = null; // the last prompt and its reply, as POST /v1/attention takes them
    this.opened = 0; // how often a model was asked for; only the newest counts
  }

  /** Asks for the models, and shows the first, or the key's field where the server wants one. */
  async open(page) {
    this.page = page;
    this.client.key = keptText("sessionStorage", KEY) ?? "";
    $("access").addEventListener("submit", (event) => {
      event.preventDefault();
      this.client.key = $("key").value.trim();
      if (this.client.key) this.list();
    });
    $("model").addEventListener("change", () => this.list());
    await this.list();
    return this.model;
  }

  /** Lists the models, and gets the one that is chosen ready. */
  async list() {
    const { page, client } = this;
    const turn = ++this.opened;
    page.pause();
    page.say("Asking the server for its models…");
    try {
      for (;;) {
        const { data } = await client.json("v1/models");
        if (turn !== this.opened) return;
        this.useKey();
        const model = data.find(({ id }) => id === $("model").value) ?? data[0];
        $("model").replaceChildren(...data.map(({ id }) => new Option(id, id, false, id === model.id)));
        $("model").disabled = false;
        if (model.ready) return this.show(model);
        page.say(`Loading ${model.id}…`);
        await new Promise((resolve) => setTimeout(resolve, LOADING_PAUSE));
        if (turn !== this.opened) return;
      }
    } catch (error) {
      if (turn === this.opened) this.refused(error);
    }
  }

  /** The key was right, or none is wanted. */
  useKey() {
    if (this.client.key) keepText("sessionStorage", KEY, this.client.key);
    $("key-fields").hidden = true;
    $("problem").hidden = true;
  }

  /** Shows why the models cannot be had, and asks for a key if that is why. */
  refused(error) {
    const { page } = this;
    page.say("Not connected.");
    if (error instanceof ServerError && error.status === 401) {
      keepText("sessionStorage", KEY, null);
      $("key-fields").hidden = false;
      $("key").focus();
      page.say("This server asks for an API key.");
      if (!this.client.key) return;
    }
    page.showError(error);
  }

  show(model) {
    const { page } = this;
    if (this.model !== null && this.model.id !== model.id) page.startOver();
    this.model = page.shared.model = model;
    page.describe({
      name: model.id,
      about: `The language model ${model.id} runs on the server of this page.`,
      card: cardOf(model),
      sampling: model.sampling,
    });
    page.ready({
      takes: model.chat ? "chat" : "text",
      system: model.system,
      vocabulary: 0,
      examples: model.examples,
      context: model.max_model_len,
      draws: null,
      pictures: Array.from({ length: model.blocks }, (_, block) => `block ${block}`),
      lines: "heads",
    });
  }

  get figures() {
    return { held: this.held, context: this.model.max_model_len, draws: null };
  }

  /** See `Engine` in page.js. */
  async *write(turns, settings, { signal }) {
    const told = { text: "", ended: false, asked: null };
    try {
      const { path, prompt, left } = await this.prompt(turns, settings, signal);
      told.asked = prompt;
      if (left) yield { kind: "left", text: "", tokens: 0, left };
      yield* this.pieces(path, { ...prompt, ...optionsOf(settings) }, signal, told);
      told.ended = true;
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) this.list();
      throw error;
    } finally {
      const done = told.ended || signal.aborted;
      this.last = done && told.asked ? { ...told.asked, reply: told.text } : null;
    }
  }

  /** The route and the prompt for the last turn: the conversation, or its message as the beginning of a text. */
  async prompt(turns, { count, system }, signal) {
    const model = this.model.id;
    if (!this.model.chat) return { path: "v1/completions", prompt: { model, prompt: turns.at(-1).message }, left: 0 };
    const context = this.model.max_model_len;
    const room = context - Math.min(count, Math.floor(context / 2));
    const counting = async (messages) => (await this.client.json("tokenize", { model, messages }, signal)).count;
    const { messages, left } = await fitting(turns, system, room, counting);
    return { path: "v1/chat/completions", prompt: { model, messages }, left };
  }

  async *pieces(path, body, signal, told) {
    let tokens = 0;
    for await (const { choices, usage } of this.client.stream(path, { ...body, stream_options: COUNTED }, signal)) {
      const more = usage.completion_tokens - tokens;
      tokens = usage.completion_tokens;
      this.held = usage.total_tokens;
      const { delta, text } = choices[0] ?? {};
      const answer = delta?.content ?? text ?? "";
      told.text += answer;
      if (delta?.reasoning_content) yield { kind: "thinking", text: delta.reasoning_content, tokens: 0 };
      yield { kind: "answer", text: answer, tokens: more };
    }
  }

  /** See `Engine` in page.js. */
  async attention(block) {
    if (this.last === null) throw new GlinferError("there is no reply to look at; send a message first");
    const { weights } = await this.client.json("v1/attention", { ...this.last, block });
    return { rows: weights.length, cols: weights[0].length, weights: Float32Array.from(weights.flat()) };
  }

  reset() {
    this.held = 0;
    this.last = null;
  }
}

function cardOf({ id, parameters, blocks, weights, max_model_len: context, licence, renderer }) {
  return [
    ["Model", id],
    ["Parameters", `${(parameters / 1e6).toFixed(1)} million numbers, in ${blocks} blocks`],
    ["Weights", weights],
    ["Context", `${context} tokens`],
    ["Licence", licence],
    ["Runs on", renderer],
  ];
}

function optionsOf({ count, temperature, topK, topP, minP, repetitionPenalty, seed }) {
  return {
    max_tokens: count,
    temperature,
    top_k: topK,
    top_p: topP,
    min_p: minP,
    repetition_penalty: repetitionPenalty,
    seed,
  };
}
