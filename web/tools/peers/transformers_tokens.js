/** A decoder on transformers.js in WebAssembly: a directory with config.json and onnx/model.onnx, by its forward passes. */

import { argmax, likeliest } from "./likeliest.js";

const { AutoModelForCausalLM, Tensor, env } = await import("/packages/@huggingface/transformers/dist/transformers.min.js");

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.useBrowserCache = false;
env.localModelPath = "/";
env.backends.onnx.wasm.wasmPaths = "/packages/onnxruntime-web/dist/";

globalThis.peer = {
  async start({ model, threads }) {
    env.backends.onnx.wasm.numThreads = threads;
    this.model = await AutoModelForCausalLM.from_pretrained(model.slice(1), { device: "wasm", dtype: "fp32" });
    return `transformers.js ${env.version}`;
  },

  /** The logits behind further tokens, whose keys and values are kept. */
  async forward(ids) {
    this.length += ids.length;
    const tensor = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
    const inputs = { input_ids: tensor(ids), attention_mask: tensor(new Array(this.length).fill(1)) };
    const { logits, ...present } = await this.model({ ...inputs, past_key_values: this.cache });
    this.logits = logits.data;
    this.cache = Object.fromEntries(
      Object.entries(present).map(([name, each]) => [name.replace("present", "past_key_values"), each]),
    );
  },

  async prompt(ids) {
    this.cache = null;
    this.length = 0;
    await this.forward(ids);
  },

  async decode(count) {
    const made = [];
    for (let left = count; left > 0; left--) {
      made.push(argmax(this.logits));
      await this.forward(made.slice(-1));
    }
    return made;
  },

  async check(ids, count, most) {
    await this.prompt(ids);
    return { top: likeliest(this.logits, most), ids: await this.decode(count) };
  },
};
