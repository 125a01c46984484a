/**
 * A model of Gab's architecture on TensorFlow.js's WebGL backend, with random weights: what bench.mjs compares with.
 * A classic script, after tf-core and tf-backend-webgl, which leave `tf` behind. The usual ways to be quick are taken:
 * one product for queries, keys and values, fused biases, caches of keys and values, nothing but the last row's logits.
 */

/* global tf */

const SPREAD = 0.02; // of the weights, as GPT-2 is initialised
const EPSILON = 1e-5;

class TfModel {
  /** @param {{vocab: number, dim: number, heads: number, blocks: number, inner: number, context: number}} shape */
  constructor(shape) {
    Object.assign(this, shape);
    let seed = 1;
    const random = (...size) => tf.randomNormal(size, 0, SPREAD, "float32", seed++);
    const norm = () => ({ gamma: tf.ones([this.dim]), beta: tf.zeros([this.dim]) });
    this.tokens = random(this.vocab, this.dim);
    this.positions = random(this.context, this.dim);
    this.layers = Array.from({ length: this.blocks }, () => ({
      first: norm(),
      qkv: random(this.dim, 3 * this.dim),
      out: random(this.dim, this.dim),
      second: norm(),
      up: random(this.dim, this.inner),
      upBias: random(this.inner),
      down: random(this.inner, this.dim),
      downBias: random(this.dim),
    }));
    this.last = norm();
    this.head = random(this.dim, this.vocab);
    this.headBias = random(this.vocab);
  }

  norm(x, { gamma, beta }) {
    const { mean, variance } = tf.moments(x, 1, true);
    return tf.add(tf.mul(tf.mul(tf.sub(x, mean), tf.rsqrt(tf.add(variance, EPSILON))), gamma), beta);
  }

  gelu(x) {
    const inner = tf.mul(Math.sqrt(2 / Math.PI), tf.add(x, tf.mul(0.044715, tf.mul(x, tf.square(x)))));
    return tf.mul(tf.mul(0.5, x), tf.add(1, tf.tanh(inner)));
  }

  byHeads(x, rows) {
    return tf.transpose(tf.reshape(x, [rows, this.heads, this.dim / this.heads]), [1, 0, 2]);
  }

  /**
   * Runs tokens that follow those in the cache.
   * @param {number[]} ids
   * @param {{k: object, v: object}[]|null} cache keys and values [heads, tokens, dim / heads] of each layer.
   * @returns {{logits: object, cache: object[]}} logits [1, vocab] of the next token; the new cache.
   */
  forward(ids, cache = null) {
    const rows = ids.length;
    const before = cache ? cache[0].k.shape[1] : 0;
    const grown = [];
    const positions = tf.slice(this.positions, [before, 0], [rows, -1]);
    let x = tf.add(tf.gather(this.tokens, tf.tensor1d(ids, "int32")), positions);
    const mask = rows > 1 ? tf.mul(-1e9, tf.sub(1, tf.linalg.bandPart(tf.ones([rows, rows]), -1, 0))) : null;
    this.layers.forEach((layer, index) => {
      const parts = tf.split(tf.matMul(this.norm(x, layer.first), layer.qkv), 3, 1);
      const [q, newK, newV] = parts.map((part) => this.byHeads(part, rows));
      const k = cache ? tf.concat([cache[index].k, newK], 1) : newK;
      const v = cache ? tf.concat([cache[index].v, newV], 1) : newV;
      grown.push({ k, v });
      let scores = tf.mul(tf.matMul(q, k, false, true), 1 / Math.sqrt(this.dim / this.heads));
      if (mask) scores = tf.add(scores, mask);
      const mixed = tf.reshape(tf.transpose(tf.matMul(tf.softmax(scores), v), [1, 0, 2]), [rows, this.dim]);
      x = tf.add(x, tf.matMul(mixed, layer.out));
      const up = this.gelu(tf.fused.matMul({ a: this.norm(x, layer.second), b: layer.up, bias: layer.upBias }));
      x = tf.add(x, tf.fused.matMul({ a: up, b: layer.down, bias: layer.downBias }));
    });
    const end = this.norm(tf.slice(x, [rows - 1, 0], [1, -1]), this.last);
    return { logits: tf.fused.matMul({ a: end, b: this.head, bias: this.headBias }), cache: grown };
  }
}

/** What bench.mjs calls. */
globalThis.peer = {
  /** `uniforms`: give shaders the shapes of textures as uniforms, so that fewer are compiled; off unless asked for. */
  async start(shape, uniforms) {
    tf.env().set("WEBGL_USE_SHAPES_UNIFORMS", uniforms);
    await tf.setBackend("webgl");
    await tf.ready();
    this.model = new TfModel(shape);
    const kinds = tf.env().getBool("WEBGL_RENDER_FLOAT32_ENABLED") ? "float32" : "float16";
    const packed = tf.env().getBool("WEBGL_PACK") ? "packed" : "unpacked";
    const gl = tf.backend().gpgpu.gl;
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    const renderer = gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
    const version = tf.env().get("WEBGL_VERSION");
    return { about: `TensorFlow.js ${tf.version_core}, WebGL ${version}, ${kinds}, ${packed} textures`, renderer };
  },

  /** Fills the cache; gives the largest difference between logits with the cache and without it. */
  prefill(ids) {
    const dispose = (cache) => cache?.forEach(({ k, v }) => tf.dispose([k, v]));
    dispose(this.cache);
    this.cache = tf.tidy(() => this.model.forward(ids.slice(0, -1)).cache);
    return tf.tidy(() => {
      const [one, other] = [this.model.forward(ids), this.model.forward(ids.slice(-1), this.cache)];
      return tf.max(tf.abs(tf.sub(one.logits, other.logits))).dataSync()[0];
    });
  },

  /** Milliseconds of one token behind the cache, until its logits are in JavaScript; the cache stays as it was. */
  cached(id) {
    const start = performance.now();
    tf.tidy(() => this.model.forward([id], this.cache).logits.dataSync());
    return performance.now() - start;
  },

  /** The same, but the cache grows: textures take another shape with each token, and so do the shaders. */
  growing(id) {
    const start = performance.now();
    const old = this.cache;
    const { logits, cache } = tf.tidy(() => this.model.forward([id], old));
    logits.dataSync();
    const spent = performance.now() - start;
    this.cache = cache;
    tf.dispose(logits);
    old.forEach(({ k, v }) => tf.dispose([k, v]));
    return spent;
  },

  /** Milliseconds of a whole sequence, without a cache. */
  whole(ids) {
    const start = performance.now();
    tf.tidy(() => this.model.forward(ids).logits.dataSync());
    return performance.now() - start;
  },
};
