/** The model that an exported site has beside its page, run by the browser itself. */

import { Conversation } from "../glinfer/chat.js";
import { replyParts } from "../glinfer/generate.js";
import { openContext } from "../glinfer/limits.js";
import { loadModel } from "../glinfer/model.js";
import { pictureName, readAttention } from "../glinfer/pictures.js";
import { fetchSource } from "../glinfer/source.js";
import { IdTokenizer } from "../glinfer/tokenizer.js";
import { describeCheck } from "../glinfer/verify.js";

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

  /** Loads the model beside the page. */
  async open(page) {
    this.page = page;
    document.getElementById("check").addEventListener("click", () => this.check());
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const gl = openContext(canvas);
    canvas.addEventListener("webglcontextlost", () => {
      document.getElementById("check").disabled = true;
      page.close("The browser took the graphics context away. Reload the page to go on.");
    });
    const model = await loadModel(gl, fetchSource(document.baseURI), {
      minimum: this.minimum,
      onPlan: (plan) => {
        page.shared.plan = plan;
        page.describe(aboutOf(plan));
      },
      onProgress: page.say,
    });
    this.model = page.shared.model = model;
    const { tokenizer, form, context, plan } = model;
    this.conversation = new Conversation(tokenizer ?? new IdTokenizer(), form, context, plan.model.stop_ids);
    document.getElementById("check").disabled = false;
    page.ready(takesOf(model));
    if (this.verifies) await this.check();
    return model;
  }

  get lost() {
    return this.model.replay.gl.isContextLost();
  }

  get figures() {
    const { ids, context, drawsIssued, ahead, plan } = this.model;
    return { held: ids.length, context, draws: drawsIssued - ahead * plan.model.draws_per_token };
  }

  /** See `Engine` in page.js. */
  async *write(message, { count, system, ...sampling }, { signal, watch }) {
    const { model, conversation } = this;
    const reserve = Math.min(count, Math.max(1, Math.floor(model.context / 2)));
    const prompt = conversation.prompt(message, reserve, { system });
    const written = [];
    const options = { maxTokens: count, signal, watch: () => this.watched(watch()), ...sampling };
    try {
      for await (const { kind, text, id } of replyParts(model, conversation, prompt, options)) {
        if (id !== null) written.push(id);
        yield { kind, text, tokens: id === null ? 0 : 1 };
      }
    } finally {
      conversation.addReply(written);
      if (this.verifies && !this.lost) this.check();
    }
  }

  /** What `Model.logits` is to watch where the page wants a picture of the next token. */
  watched(wish) {
    if (!wish) return null;
    const picture = this.model.plan.pictures[wish.picture];
    return { draw: picture.draw, seen: () => wish.seen(readAttention(this.model, picture)) };
  }

  reset() {
    this.conversation.reset();
    this.model.rewind(this.model.ids.length);
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

function aboutOf({ model }) {
  const millions = (model.parameters / 1e6).toFixed(1);
  return {
    name: model.name,
    about: `${model.name}, a language model, runs on this computer, inside this page. Nothing that you write leaves it.`,
    facts:
      `This one, ${model.name}, has ${millions} million numbers (parameters), kept as ${model.weights}. It is computed ` +
      `with WebGL2 by the plan “${model.plan}”.`,
    sampling: model.generation,
  };
}

function takesOf({ plan, tokenizer, form, why, context }) {
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
  };
}
