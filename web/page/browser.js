/** The page's engine over the model of its own site: in a worker, or in the page where the browser has none that can. */

import { progressInWords } from "../glinfer/loading.js";
import { load } from "../glinfer/model.js";
import { direct } from "../glinfer/threads.js";
import { describeCheck } from "../glinfer/verify.js";
import { element } from "./elements.js";
import { LocalEngine } from "./local.js";
import { keepPage, leavePage } from "./offline.js";
import { takeThread } from "./thread.js";

const LOST = "The browser dropped the graphics context, and the model with it.";

/** A link to the page of the tour. */
function offerTour() {
  document.getElementById("theme").before(element("a", { id: "tour", href: "tour.html", textContent: "Tour" }));
}

/** An engine of the page, see page.js. */
export class BrowserEngine {
  name = "browser";
  lost = false;
  loadModel = load;
  /** Further options of `loadModel`. */
  more = {};
  hasTour = true;

  /**
   * @param {URLSearchParams} asked `minimum=1` allows no more than WebGL2 promises; `verify=1` compares textures; `worker=0`
   *   computes in the page (thread.js); `cache=0` keeps nothing for the next visit, and `offline=0` nothing to open the page without a
   *   server, and lets go of what is kept for that.
   */
  constructor(asked) {
    this.asked = asked;
    this.minimum = asked.get("minimum") === "1";
    this.verifies = asked.get("verify") === "1";
    this.cache = asked.get("cache") !== "0";
    this.checking = Promise.resolve(); // one check of textures after another
    this.figures = { held: 0, context: 0, draws: 0 };
    this.link = null;
  }

  /** Gets ready, and loads the model beside the page. */
  async open(page) {
    this.page = page;
    document.getElementById("check").addEventListener("click", () => this.check());
    await leavePage(this.asked);
    const model = await this.load();
    keepPage(page.shared.plan, this.asked);
    return model;
  }

  /** Loads the model, with a context of its own; again where that was lost. */
  async load() {
    const { page } = this;
    this.link?.close();
    const local = new LocalEngine(this.loadModel);
    const remote = await takeThread();
    const link = (this.link = remote ?? direct(local));
    this.lost = false;
    const ended = (problem) => {
      if (link !== this.link) return; // it was let go of
      this.lost = true;
      document.getElementById("check").disabled = true;
      page.interrupted(problem);
    };
    link.call("untilLost").then(() => ended(LOST), ({ message }) => ended(message));
    const inWords = progressInWords();
    const can = await link.call("open", new URL(".", document.baseURI).href, {
      minimum: this.minimum,
      cache: this.cache,
      ...this.more,
      onPlan: (plan) => {
        const first = page.shared.plan === null;
        page.shared.plan = plan;
        if (first) page.describe(aboutOf(plan)); // or the person's settings would be gone
        if (first && plan.offline !== null && this.hasTour) offerTour(); // a single file has no other page
      },
      onProgress: (progress) => page.say(inWords(progress)),
    });
    this.figures = { held: 0, context: can.context, draws: 0 };
    page.shared.model = remote ? { worker: true } : local.model;
    document.getElementById("check").disabled = false;
    page.ready(can);
    if (this.verifies) await this.check();
    return page.shared.model;
  }

  /** See `Engine` in page.js. */
  async *write(turns, settings, { signal, watch }) {
    const { link } = this;
    let wish = watch();
    const pieces = link.iterate("write", turns, settings, { signal, wish: wish?.picture ?? null });
    try {
      for (;;) {
        const { done, value } = await pieces.next(wish?.picture ?? null);
        if (done) break;
        const { figures, picture, attention, ...piece } = value;
        this.figures = figures;
        if (piece.kind === "picture") {
          if (wish?.picture === picture) wish.seen(attention);
        } else {
          yield piece;
          wish = watch();
        }
      }
    } catch (error) {
      if (!this.lost && link === this.link) throw error; // `lost` reports a lost context to the page
    } finally {
      await pieces.return?.();
      if (this.verifies && !this.lost) this.check();
    }
  }

  /** See `Engine` in page.js. */
  prepare(turns, written, settings) {
    this.link.call("prepare", turns, written, settings).catch(() => {}); // an error is shown when the message is sent
  }

  reset() {
    this.link?.call("reset").catch(() => {}); // it was let go of
    this.figures = { ...this.figures, held: 0 };
  }

  /** Compares the model's textures with its files and says what was found, once earlier checks are done. */
  check() {
    this.checking = this.checking.then(async () => {
      const line = document.getElementById("checked");
      Object.assign(line, { hidden: false, className: "", textContent: "Checking the textures…" });
      try {
        const report = await this.link.call("verify");
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

function aboutOf({ model, requires }) {
  const { name, parameters, weights, cache, plan, config, draws_per_token: draws, licence } = model;
  return {
    name,
    about: `The language model ${name} runs on this computer, inside this page. What you write stays here.`,
    card: [
      ["Model", name],
      ["Parameters", `${(parameters / 1e6).toFixed(1)} million numbers, in ${config.num_hidden_layers} blocks`],
      ["Weights", weights],
      ["Context", `${config.max_position_embeddings} tokens, stored as ${cache}`],
      ["Vocabulary", `${config.vocab_size} tokens`],
      ["Computed", `with WebGL2, ${draws} draws per token with the plan “${plan}”`],
      ["Needs", `textures of ${requires.max_texture_size} texels a side`],
      ["Licence", licence],
    ],
    sampling: model.generation,
  };
}
