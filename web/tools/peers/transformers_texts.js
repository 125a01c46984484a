/**
 * A model on transformers.js in WebAssembly: what embed_bench.mjs compares with. A module of a page beside `packages/`,
 * where npm's packages are, and `peer/model/`, the model as a directory with onnx/model.onnx.
 */

const { env, pipeline } = await import("/packages/@huggingface/transformers/dist/transformers.min.js");

const AT_ONCE = 32; // texts of a batch, as sentence-transformers has it

env.allowLocalModels = true;
env.allowRemoteModels = false;
env.useBrowserCache = false;
env.localModelPath = "/peer/";
env.backends.onnx.wasm.wasmPaths = "/packages/onnxruntime-web/dist/";

globalThis.peer = {
  extractor: await pipeline("feature-extraction", "model", { device: "wasm", dtype: "fp32" }),
  version: env.version,

  /** The vectors of texts, in batches of like length. */
  async embed(texts) {
    const order = Array.from(texts.keys()).sort((one, other) => texts[other].length - texts[one].length);
    const found = new Array(texts.length);
    for (let start = 0; start < order.length; start += AT_ONCE) {
      const places = order.slice(start, start + AT_ONCE);
      const out = await this.extractor(places.map((place) => texts[place]), { pooling: "mean", normalize: true });
      const width = out.dims[1];
      places.forEach((place, row) => (found[place] = out.data.slice(row * width, (row + 1) * width)));
    }
    return found;
  },
};
