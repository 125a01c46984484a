/** A GGUF file on wllama, which is llama.cpp in WebAssembly. Its server keeps the beginning that two prompts share. */

import { Wllama } from "/packages/@wllama/wllama/esm/index.js";

/** A prompt that the file's tokenizer, made for it, turns into these ids. */
const spelt = (ids) => ids.map((id) => `<|${id}|>`).join("");

const GREEDY = { temperature: 0, ignore_eos: true };

globalThis.peer = {
  async start({ model, threads }) {
    const quiet = { debug() {}, log() {}, warn() {}, error: console.error };
    this.wllama = new Wllama({ default: "/packages/@wllama/wllama/esm/wasm/wllama.wasm" }, { logger: quiet, suppressNativeLog: true });
    const file = await (await fetch(`${model}.gguf`)).blob();
    await this.wllama.loadModel([file], { n_threads: threads, n_ctx: 512, n_parallel: 1, n_gpu_layers: 0, warmup: false });
    if (this.wllama.getNumThreads() !== threads) throw new Error(`wllama took ${this.wllama.getNumThreads()} threads`);
    return `wllama's llama.cpp ${Wllama.getLibllamaVersion()}`;
  },

  async prompt(ids) {
    this.text = spelt(ids);
    await this.wllama.createCompletion({ prompt: this.text, max_tokens: 1, cache_prompt: false, ...GREEDY });
  },

  /** Runs the last token of the prompt and all new ones but the last, each time from the prompt on. */
  async decode(count) {
    await this.wllama.createCompletion({ prompt: this.text, max_tokens: count, cache_prompt: true, ...GREEDY });
  },

  async check(ids, count, most) {
    const given = { prompt: spelt(ids), max_tokens: count, cache_prompt: false, logprobs: most, ...GREEDY };
    const { content } = (await this.wllama.createCompletion(given)).choices[0].logprobs;
    return { top: content[0].top_logprobs.map(({ id, logprob }) => [id, logprob]), ids: content.map(({ id }) => id) };
  },
};
