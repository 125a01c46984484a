/** The model that an exported site has beside its page, run by the browser itself. */

import { Conversation } from "../glinfer/chat.js";
import { replyParts } from "../glinfer/generate.js";
import { openContext } from "../glinfer/limits.js";
import { loadModel } from "../glinfer/model.js";
import { pictureName, readAttention } from "../glinfer/pictures.js";
import { fetchSource } from "../glinfer/source.js";
import { IdTokenizer } from "../glinfer/tokenizer.js";
import { describeCheck } from "../glinfer/verify.js";

const LOST = "The browser took the graphics context away, and the model with it.";

/** An engine of the page, see page.js: WebGL2 in this browser. */
export class LocalEngine {
  name = "browser";

  /** @param {URLSearchParams} asked `minimum=1` allows no more than WebGL2 promises; `verify=1` compares textures. */
  constructor(asked) {
    this.minimum = asked.get("minimum") === "1";
    this.verifies = asked.get("verify") === "1";
    this.checking = Promise.resolve(); // one check of textures after another
    this.model = null;
  }

  /** Gets ready, and loads the model beside the page. */
  async open(page) {
    this.page = page;
    document.getElementById("check").addEventListener("click", () => this.check());
    return this.load();
  }

  /** Loads the model, with a context of its own; again where that was lost. */
  async load() {
    const { page } = this;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const gl = openContext(canvas);
    canvas.addEventListener("webglcontextlost", () => {
      document.getElementById("check").disabled = true;
      page.interrupted(LOST);
    });
    const model = await loadModel(gl, fetchSource(document.baseURI), {
      minimum: this.minimum,
      onPlan: (plan) => {
        page.shared.plan = plan;
        if (this.model === null) page.describe(aboutOf(plan)); // or the person's settings would be gone
      },
      onProgress: page.say,
    });
    this.model = page.shared.model = model;
    const { tokenizer, form, context, plan } = model;
    this.conversation = new Conversation(tokenizer ?? new IdTokenizer(), form, context, plan.model.stop_ids);
    this.encoded = new Map(); // turns by their texts, as the conversation has them
    document.getElementById("check").disabled = false;
    page.ready(takesOf(model));
    if (this.verifies) await this.check();
    return model;
  }

  get lost() {
    return this.model?.replay.gl.isContextLost() ?? false;
  }

  get figures() {
    const { ids, context, drawsIssued } = this.model;
    return { held: ids.length, context, draws: drawsIssued };
  }

  /** See `Engine` in page.js. */
  async *write(turns, { count, system, ...sampling }, { signal, watch }) {
    const { model, conversation, encoded } = this;
    const { message } = turns.at(-1);
    conversation.turns = conversation.form ? turns.slice(0, -1).map((turn) => this.encode(turn)) : [];
    const reserve = Math.min(count, Math.max(1, Math.floor(model.context / 2)));
    const prompt = conversation.prompt(message, reserve, { system });
    const left = conversation.turns.length - (conversation.open?.past ?? conversation.turns).length;
    if (left) yield { kind: "left", text: "", tokens: 0, left };
    const written = [];
    let answer = "";
    const options = { maxTokens: count, signal, watch: () => this.watched(watch()), ...sampling };
    try {
      for await (const { kind, text, id } of replyParts(model, conversation, prompt, options)) {
        if (this.lost) return; // what was read then are no logits
        if (id !== null) written.push(id);
        if (kind === "answer") answer += text;
        yield { kind, text, tokens: id === null ? 0 : 1 };
      }
    } catch (error) {
      if (!this.lost) throw error; // of a lost context the page is told anyway
    } finally {
      conversation.addReply(written);
      if (conversation.form) encoded.set(keyOf({ message, answer }), conversation.turns.at(-1));
      if (this.verifies && !this.lost) this.check();
    }
  }

  /** A turn as the conversation has it: with the tokens that were written, or those of its text. */
  encode(turn) {
    const { message, answer: text } = turn;
    const known = this.encoded.get(keyOf(turn));
    return known ?? { message, ids: this.conversation.form.encodeMessage(message), reply: [], text };
  }

  /** What `Model.logits` is to watch where the page wants a picture of the next token. */
  watched(wish) {
    if (!wish) return null;
    const picture = this.model.plan.pictures[wish.picture];
    return { draw: picture.draw, seen: () => wish.seen(readAttention(this.model, picture)) };
  }

  reset() {
    this.conversation?.reset();
    this.encoded?.clear();
    this.model?.rewind(this.model.ids.length);
  }

  /** Compares the model's textures with its files and says what was found, once earlier checks are done. */
  check() {
    this.checking = this.checking.then(async () => {
      const line = document.getElementById("checked");
      Object.assign(line, { hidden: false, className: "", textContent: "Checking the textures…" });
      try {
        const report = await this.model.verifyTextures();
        line.className = report.ok ? "" : "different";
        line.textContent = describeCheck(report);
        this.page.shared.checks.push(report);
      } catch (error) {
        line.textContent = "The textures could not be checked.";
        this.page.showError(error);
      }
    });
    return this.checking;
  }
}

function keyOf({ message, answer }) {
  return JSON.stringify([message, answer]);
}

function aboutOf({ model, requires }) {
  const { name, parameters, weights, cache, plan, config, draws_per_token: draws, licence } = model;
  return {
    name,
    about: `${name}, a language model, runs on this computer, inside this page. Nothing that you write leaves it.`,
    card: [
      ["Model", name],
      ["Parameters", `${(parameters / 1e6).toFixed(1)} million numbers, in ${config.num_hidden_layers} blocks`],
      ["Weights", weights],
      ["Context", `${config.max_position_embeddings} tokens, kept as ${cache}`],
      ["Vocabulary", `${config.vocab_size} tokens`],
      ["Computed", `with WebGL2, ${draws} draws a token by the plan “${plan}”`],
      ["Needs", `textures of ${requires.max_texture_size} texels a side`],
      ["Licence", licence],
    ],
    sampling: model.generation,
  };
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
    renderer: gl.getParameter(gl.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL ?? gl.RENDERER),
  };
}
