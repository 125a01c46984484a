/** An exported site's model, as bench.mjs drives it: tokens are chosen as the page chooses them. */

import { argmax, likeliest } from "./likeliest.js";

const AT_ONCE = 8; // tokens, as the page asks for them

globalThis.peer = {
  async start({ model }) {
    const { load } = await import(`${model}/glinfer/model.js`);
    const { Sampler } = await import(`${model}/glinfer/sampler.js`);
    this.model = await load(`${model}/`, { cache: false });
    this.sampler = new Sampler({ temperature: 0 });
    const { gl } = this.model.replay;
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    return `${this.model.plan.model.draws_per_token} draws a token; ${gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER)}`;
  },

  prompt(ids) {
    this.model.rewind(this.model.ids.length);
    this.model.prefill(ids);
    this.model.logits();
  },

  decode(count) {
    for (let left = count; left > 0; ) left -= this.model.choose(Math.min(AT_ONCE, left), this.sampler).length;
  },

  check(ids, count, most) {
    this.prompt(ids);
    const top = likeliest(this.model.logits(), most);
    const made = [];
    for (let left = count; left > 0; left--) {
      made.push(argmax(this.model.logits()));
      this.model.step(made.at(-1));
    }
    return { top, ids: made };
  },
};
