/**
 * A GAB1 file on TensorFlow.js's WebGL backend: what bench.mjs compares with. Behind tf-core and tf-backend-webgl, which
 * leave `tf`. The usual ways to be quick are taken: one product for queries, keys and values, fused biases, caches of keys
 * and values, nothing but the last row's logits.
 */

/* global tf */

import { argmax, likeliest } from "./likeliest.js";

const EPSILON = 1e-5;

class TfModel {
  /** @param {ArrayBuffer} file */
  constructor(file) {
    const [, , vocab, dim, heads, blocks, context] = new Uint32Array(file, 0, 7);
    this.dim = dim;
    this.heads = heads;
    let offset = 28; // after the seven numbers
    const next = (...shape) => {
      const size = shape.reduce((one, other) => one * other);
      offset += 4 * size;
      return tf.tensor(new Float32Array(file, offset - 4 * size, size), shape);
    };
    const norm = () => ({ gamma: next(dim), beta: next(dim) });
    // Rows of a product's output, each followed by its bias.
    const biased = (outputs, inputs) => {
      const [matrix, bias] = tf.split(next(outputs, inputs + 1), [inputs, 1], 1);
      return { matrix: tf.transpose(matrix), bias: tf.reshape(bias, [outputs]) };
    };
    this.tokens = next(vocab, dim);
    this.positions = next(context, dim);
    this.layers = Array.from({ length: blocks }, () => {
      const first = norm();
      const qkv = tf.concat([next(dim, dim), next(dim, dim), next(dim, dim)], 1);
      return { first, qkv, out: next(dim, dim), second: norm(), up: biased(4 * dim, dim), down: biased(dim, 4 * dim) };
    });
    this.last = norm();
    this.head = next(dim, vocab);
    this.headBias = next(vocab);
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
      const up = this.gelu(tf.fused.matMul({ a: this.norm(x, layer.second), b: layer.up.matrix, bias: layer.up.bias }));
      x = tf.add(x, tf.fused.matMul({ a: up, b: layer.down.matrix, bias: layer.down.bias }));
    });
    const end = this.norm(tf.slice(x, [rows - 1, 0], [1, -1]), this.last);
    return { logits: tf.fused.matMul({ a: end, b: this.head, bias: this.headBias }), cache: grown };
  }
}

function dispose(cache) {
  cache?.forEach(({ k, v }) => tf.dispose([k, v]));
}

globalThis.peer = {
  /** `uniforms`: give shaders the shapes of textures as uniforms, so that fewer are compiled; `grows`: whether the cache does. */
  async start({ model, uniforms, grows }) {
    tf.env().set("WEBGL_USE_SHAPES_UNIFORMS", uniforms);
    await tf.setBackend("webgl");
    await tf.ready();
    const file = await (await fetch(`${model}.gab`)).arrayBuffer();
    this.model = tf.tidy(() => new TfModel(file));
    this.grows = grows;
    const kinds = tf.env().getBool("WEBGL_RENDER_FLOAT32_ENABLED") ? "float32" : "float16";
    const packed = tf.env().getBool("WEBGL_PACK") ? "packed" : "unpacked";
    return `TensorFlow.js ${tf.version_core}, WebGL ${tf.env().get("WEBGL_VERSION")}, ${kinds}, ${packed} textures`;
  },

  /** Runs tokens behind a cache; gives logits, read, and the new cache. */
  forward(ids, before) {
    const { logits, cache } = tf.tidy(() => this.model.forward(ids, before));
    const read = logits.dataSync();
    tf.dispose(logits);
    return { logits: read, cache };
  },

  /** Decoding continues from the first prompt's cache. */
  prompt(ids) {
    const found = this.forward(ids, null);
    if (this.cache) dispose(found.cache);
    else this.keep(found);
  },

  keep({ logits, cache }) {
    dispose(this.cache);
    this.cache = cache;
    this.logits = logits;
  },

  /** Lengths are always new where the cache grows, as in one conversation: textures take another shape with each token. */
  decode(count) {
    const made = [];
    for (let left = count; left > 0; left--) {
      made.push(argmax(this.logits));
      const found = this.forward(made.slice(-1), this.cache);
      if (this.grows) this.keep(found);
      else dispose(found.cache);
    }
    return made;
  },

  check(ids, count, most) {
    this.keep(this.forward(ids, null));
    const top = likeliest(this.logits, most);
    return { top, ids: this.grows ? this.decode(count) : [] };
  },
};
