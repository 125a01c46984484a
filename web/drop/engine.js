/** The page's engine over the model of a GGUF file. */

import { GlinferError } from "../glinfer/errors.js";
import { fetchSource } from "../glinfer/source.js";
import { BrowserEngine } from "../page/browser.js";
import { $, button } from "../page/elements.js";
import { Chooser, remember } from "./chooser.js";
import { loadGguf } from "./load.js";
import { examine } from "./source.js";

/** An engine of the page, see ../page/page.js; a model is chosen before it is loaded. */
export class DropEngine extends BrowserEngine {
  loadModel = loadGguf;
  hasTour = false;

  /** Asks for a file until one can be loaded. */
  async load() {
    if (this.page.model) return super.load(); // the context was lost
    const { drop } = JSON.parse(await fetchSource(document.baseURI).text("plan.json"));
    const chooser = new Chooser(drop.shapes, this.minimum);
    for (let chosen = null; ; chosen = null) {
      this.page.say("Choose a model.");
      try {
        chosen = await chooser.next();
        $("problem").hidden = true;
        this.page.say("Reading the file…");
        if (!chosen.kept) {
          const examined = await examine(chosen.gguf, drop);
          if (!examined.file.local) this.page.say("Ready to download.");
          if (!(await chooser.confirm(examined))) continue;
        }
        this.more = chosen;
        const model = await super.load();
        chooser.close();
        this.offerOthers();
        const { files, model: about } = this.page.shared.plan;
        remember(this.cache ? { name: about.name, fingerprint: files.fingerprint } : null);
        return model;
      } catch (error) {
        if (!(error instanceof GlinferError)) console.error(error);
        if (chosen?.kept) remember(null);
        this.page.model = null;
        this.page.shared.plan = null;
        const names = [chosen?.gguf].flat().map((each) => each?.name);
        if (names.some((name) => name && error.message.startsWith(name))) this.page.showProblems([`${error.message}.`]); // begins with the file's name as it is
        else this.page.showError(error);
      }
    }
  }

  /** A button that begins again with another model. */
  offerOthers() {
    $("theme").before(button("Another model", () => location.reload(), { id: "others" }));
  }
}
