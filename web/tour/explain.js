/**
 * How one number of a target came about: what its fragment read, the terms of its sum, and the same number in float64.
 * Each function below is a shader, by its name; float32 inputs are exact as JavaScript's numbers.
 */

import { elementIn } from "./recording.js";
import { weightReader } from "./weights.js";
import { shown } from "./words.js";

const MASKED = -1e30;
const SLOT = 64; // tokens of a slot of scores
const BLOCK = 64; // outputs of a block; a gate's blocks alternate with those that it multiplies
const UNKNOWN = ["PARTS", "RAW", "RAW_INPUT", "EXPERT_BLOCKS", "LORA", "NORMS", "OUTPUT_CAP"]; // parts of gemm.frag

/**
 * @typedef {{name: string, factors: number[], value: number}} Term `factors` are what the shader multiplied.
 * @typedef {object} Explanation
 * @property {string} words
 * @property {string[]} columns names of the factors.
 * @property {Term[]} terms
 * @property {[string, number][]} sums what is done with the sum of the terms, step by step.
 * @property {number} exact the number in float64.
 * @property {number} found the number that the draw has written.
 */

const sumOf = (terms) => terms.reduce((sum, { value }) => sum + value, 0);

/** The error function, by its series of positive terms. */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let [term, sum] = [x, x];
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

/** The activations of ../../shaders/common/activation.glsl, by their number. */
const ACTIVATIONS = [
  (x) => x,
  (x) => 0.5 * x * (1 + Math.tanh(0.7978845608028654 * (x + 0.044715 * x ** 3))),
  (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  (x) => x / (1 + Math.exp(-x)),
  Math.tanh,
  (x) => Math.max(x, 0) ** 2,
];
const ACTIVATION_NAMES = ["", "GELU", "GELU", "SiLU", "tanh", "ReLU squared"];

/** The mean of a row, and 1 / its spread. */
function spread(row, eps) {
  const mean = row.reduce((sum, x) => sum + x, 0) / row.length;
  const variance = row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length;
  return { mean, factor: 1 / Math.sqrt(variance + eps) };
}

/** Adds bias, activation and residual to a sum, and notes each step. */
function finished(sum, { bias, activation = 0, residual, sums = [["sum of the products", sum]] }) {
  let value = sum;
  if (bias !== undefined) sums.push(["plus the bias", (value += bias)]);
  if (activation) sums.push([`after ${ACTIVATION_NAMES[activation]}`, (value = ACTIVATIONS[activation](value))]);
  if (residual !== undefined) sums.push(["plus the stream", (value += residual)]);
  return { sums, exact: value };
}

/** The products of a row of numbers with a row of a matrix. */
function products(x, weight, row, name = "") {
  return x.map((each, index) => {
    const factors = [each, weight(row, index)];
    return { name: `input ${index}${name}`, factors, value: factors[0] * factors[1] };
  });
}

const SHADERS = {
  "embed.frag": ({ read, word }, row, col) => {
    const id = read("tokens", row, 0);
    const [table, learned] = [read("token_embedding", id, col), read("position_embedding", row, col)];
    return {
      words: `Column ${col} of the word “${word(id)}” plus column ${col} of position ${row}.`,
      columns: ["table"],
      terms: [{ name: `word ${id} “${word(id)}”`, factors: [table], value: table }, { name: `position ${row}`, factors: [learned], value: learned }],
      sums: [["sum", table + learned]],
      exact: table + learned,
    };
  },
  "embed_token.frag": ({ read, weights, has, defines, values: { position }, word, ids }, row, col) => {
    const id = ids.at(-1);
    const table = has("weight") ? weights()(id, col) : read("wte", id, col);
    const terms = [{ name: `word “${word(id)}”`, factors: [table], value: table * Number(defines.EMBEDDING_SCALE) }];
    if (has("wpe")) terms.push({ name: `position ${position}`, factors: [read("wpe", position, col)], value: read("wpe", position, col) });
    return {
      words: `Column ${col} of the word “${word(id)}”${has("wpe") ? ` plus column ${col} of position ${position}` : ""}, as the fast plan's weights have them.`,
      columns: ["table"],
      terms,
      sums: [["sum", sumOf(terms)]],
      exact: sumOf(terms),
    };
  },
  "lookup.frag": ({ read, weights, has, defines: { IDS_COLS }, word }, row, col) => {
    if (has("images")) return null;
    const id = read("ids", Math.floor(row / IDS_COLS), row % IDS_COLS);
    const exact = weights()(id, col);
    return { words: `Column ${col} of the word “${word(id)}”.`, columns: ["table"], terms: [{ name: `word ${id} “${word(id)}”`, factors: [exact], value: exact }], sums: [], exact };
  },
  "layer_norm.frag": ({ read, defines: { DIM, EPS } }, row, col) => {
    const x = Array.from({ length: DIM }, (_, index) => read("x", row, index));
    const { mean, factor } = spread(x, Number(EPS));
    const normal = (x[col] - mean) * factor;
    const [weight, bias] = [read("weight", 0, col), read("bias", 0, col)];
    return {
      words: `The row has the mean ${mean.toPrecision(4)} and the spread ${(1 / factor).toPrecision(4)}. The mean is subtracted from the number; the result is divided by the spread, multiplied by the weight, and the bias is added.`,
      columns: ["x", "normal", "weight"],
      terms: [{ name: `column ${col}`, factors: [x[col], normal, weight], value: normal * weight }],
      sums: [["times the weight", normal * weight], ["plus the bias", normal * weight + bias]],
      exact: normal * weight + bias,
    };
  },
  "linear.frag": ({ read, has, defines, values, matrixRow }, row, col) => {
    const from = defines.LAST_ROW ? values.rows - 1 : row;
    const x = Array.from({ length: defines.IN }, (_, index) => read("x", from, index));
    const terms = products(x, (...at) => read("weight", ...at), col);
    return {
      words: `Row ${from} of x, number by number, times ${matrixRow(col)}: ${defines.IN} products, added up.`,
      columns: ["x", "weight"],
      terms,
      ...finished(sumOf(terms), {
        bias: has("bias") ? read("bias", 0, col) : undefined,
        activation: defines.ACTIVATION,
        residual: has("residual") ? read("residual", row, col) : undefined,
      }),
    };
  },
  "attention_scores.frag": ({ read, defines: { HEAD_DIM, SCALE }, uniforms, token }, row, col) => {
    if (col > row) return { words: `${token(col)} comes after ${token(row)}: masked.`, columns: [], terms: [], sums: [], exact: MASKED };
    const terms = Array.from({ length: HEAD_DIM }, (_, index) => {
      const factors = [read("q", row, uniforms.head * HEAD_DIM + index), read("k", col, uniforms.head * HEAD_DIM + index)];
      return { name: `element ${index}`, factors, value: factors[0] * factors[1] };
    });
    const [sum, scale] = [sumOf(terms), Number(SCALE)];
    return {
      words: `What ${token(row)} looks for, times what ${token(col)} offers.`,
      columns: ["query", "key"],
      terms,
      sums: [["sum of the products", sum], [`times ${scale.toPrecision(4)}`, sum * scale]],
      exact: sum * scale,
    };
  },
  "softmax.frag": ({ read, uniforms: { cols }, token, word, square }, row, col) => {
    const x = Array.from({ length: cols }, (_, index) => read("x", row, index));
    const largest = Math.max(...x);
    const terms = x.map((score, index) => {
      return { name: square ? token(index) : `“${word(index)}”`, factors: [score], value: Math.exp(score - largest) };
    });
    const sum = sumOf(terms);
    return {
      words: square ? `Of all that ${token(row)} can look at, the share of ${token(col)}.` : `Of all words, the share of “${word(col)}”.`,
      columns: ["score"],
      terms,
      sums: [["sum of the powers", sum], ["this one divided by the sum", terms[col].value / sum]],
      exact: terms[col].value / sum,
    };
  },
  "attention_values.frag": ({ read, defines: { HEAD_DIM }, uniforms: { head, rows }, token }, row, col) => {
    const terms = Array.from({ length: rows }, (_, index) => {
      const factors = [read("probs", row, index), read("v", index, head * HEAD_DIM + col)];
      return { name: token(index), factors, value: factors[0] * factors[1] };
    });
    return {
      words: `Element ${col} of the values of all tokens, each times the share that ${token(row)} gives it.`,
      columns: ["share", "value"],
      terms,
      sums: [["sum of the products", sumOf(terms)]],
      exact: sumOf(terms),
    };
  },
  "concat_head.frag": ({ read, has, defines: { HEAD_DIM }, uniforms: { head } }, row, col) => {
    const own = Math.floor(col / HEAD_DIM) === head;
    const exact = own ? read("mixed", row, col % HEAD_DIM) : has("so_far") ? read("so_far", row, col) : 0;
    const words = own ? `A copy of head ${head}.` : has("so_far") ? "A copy from the other texture: the column belongs to another head." : "No head has reached this column yet.";
    return { words, columns: ["copied"], terms: [{ name: `column ${col}`, factors: [exact], value: exact }], sums: [], exact };
  },
  "matmul.frag": ({ read, weights, has, defines, matrixRow }, row, col) => {
    if (!defines.TRANSPOSED || defines.PARTS !== 1 || defines.ROWS !== 1 || ["BATCHED", "CAP", "CAUSAL"].some((each) => each in defines)) return null;
    const terms = products(Array.from({ length: defines.K }, (_, index) => read("x", row, index)), weights(), col);
    return {
      words: `Row ${row} of x, number by number, times ${matrixRow(col)}: ${defines.K} products, added up.`,
      columns: ["x", "weight"],
      terms,
      ...finished(sumOf(terms) * Number(defines.SCALE), {
        bias: has("bias") ? read("bias", 0, col) : undefined,
        activation: defines.ACTIVATION,
        residual: has("residual") ? read("residual", row, col) : undefined,
      }),
    };
  },
  "gate.frag": ({ read, defines }, row, col) => {
    if (defines.PACKED || "GATE_LIMIT" in defines) return null;
    const [gate, up] = [read("x", row, col), read("up", row, col)];
    const open = ACTIVATIONS[defines.ACTIVATION](gate);
    return {
      words: `Detector ${col}: its value, times how far its gate opens.`,
      columns: ["gate", "value"],
      terms: [{ name: `column ${col}`, factors: [gate, up], value: open * up }],
      sums: [[`the gate after ${ACTIVATION_NAMES[defines.ACTIVATION]}`, open], ["times the value", open * up]],
      exact: open * up,
    };
  },
  "gemm.frag": ({ read, weights, has, defines, uniforms: { position }, matrixRow }, row, col) => {
    const weight = weights();
    if (weight === null || defines.ROWS !== 1 || UNKNOWN.some((each) => each in defines)) return null;
    const given = Array.from({ length: defines.INPUTS }, (_, index) => read(has("x0") ? "x0" : "x", 0, index));
    const mean = defines.CENTRED ? given.reduce((sum, each) => sum + each, 0) / defines.DIM : 0;
    const squares = given.reduce((sum, each) => sum + each * each, 0) / defines.DIM - mean * mean;
    const factor = defines.NORM ? 1 / Math.sqrt(squares + Number(defines.EPS)) : 1;
    const x = given.map((each, index) => each * factor * (has("gain") ? read("gain", 0, index) : 1));
    const biasAt = 4 * defines.SCALED + defines.CENTRED;
    /** The sum of an output of the matrix, with its bias; `name` says which one if there are two. */
    const output = (number, name = "") => {
      const terms = products(x, weight, number, name && `, ${name}`);
      const sums = [[name ? `${name}: sum of the products` : "sum of the products", sumOf(terms)]];
      let value = sumOf(terms);
      if (defines.CENTRED) sums.push(["less the mean of the row", (value -= mean * factor * read("consts", number, biasAt - 1))]);
      const bias = read("consts", number, biasAt);
      if (bias !== 0) sums.push(["plus the bias", (value += bias)]);
      return { terms, sums, value };
    };
    const normal = defines.NORM ? `The row is divided by its spread ${(1 / factor).toPrecision(4)} in the same pass. ` : "";
    const columns = ["x", "weight"];
    if (defines.GATED) {
      const first = Math.floor(col / BLOCK) * 2 * BLOCK + (col % BLOCK);
      const [gate, up] = [output(first, "gate"), output(first + BLOCK, "value")];
      const open = ACTIVATIONS[defines.ACTIVATION](gate.value);
      return {
        words: `${normal}Detector ${col} has two rows of the matrix, ${defines.INPUTS} products each: one says how far its gate opens, the other what it lets through.`,
        columns,
        terms: [...gate.terms, ...up.terms],
        sums: [...gate.sums, [`the gate after ${ACTIVATION_NAMES[defines.ACTIVATION]}`, open], ...up.sums, ["gate times value", open * up.value]],
        exact: open * up.value,
      };
    }
    const [texel, floats] = [col >> 2, 4 * defines.HEAD_TEXELS];
    if ("ROPE" in defines && (texel < defines.KEY_TEXELS || texel >= defines.QUERY_AT)) {
      const query = texel >= defines.QUERY_AT;
      const angle = ((query ? col - 4 * defines.QUERY_AT : col) % floats) + (query ? 4 * (defines.QUERY_TURNS ?? 0) : 0);
      const [cos, sin] = [read("rope", position, angle & ~1), read("rope", position, angle | 1)];
      const [own, other] = [output(col, "own"), output(col ^ 1, "neighbour")];
      const exact = own.value * cos + other.value * (col & 1 ? sin : -sin);
      return {
        words: `${normal}Columns ${col & ~1} and ${col | 1} are a pair, ${defines.INPUTS} products each, which position ${position} rotates: cosine ${cos.toPrecision(4)}, sine ${sin.toPrecision(4)}.`,
        columns,
        terms: [...own.terms, ...other.terms],
        sums: [...own.sums, ...other.sums, ["the pair, rotated", exact]],
        exact,
      };
    }
    const { terms, sums, value } = output(col);
    return {
      words: `${normal}Each number of the row times ${matrixRow(col)}: ${defines.INPUTS} products, added up.`,
      columns,
      terms,
      ...finished(value, { activation: defines.ACTIVATION, residual: has("r0") ? read("r0", 0, col) : undefined, sums }),
    };
  },
  "cached_scores.frag": ({ read, has, defines, values: { position }, token }, row, col) => {
    const [head, key] = [Math.floor(col / SLOT), row * SLOT + (col % SLOT)];
    if (defines.SCORE_CAP !== undefined || defines.CACHE_SCALES_AT !== undefined || has("queries")) return null;
    const window = Number(defines.WINDOW) || Infinity;
    if (key > position || key <= position - window) return { words: `There is no such token ${key > position ? "yet" : "in the window"}: masked.`, columns: [], terms: [], sums: [], exact: MASKED };
    const floats = 4 * defines.HEAD_TEXELS;
    const keys = Math.floor(head / (defines.HEADS / defines.KV_HEADS)) * floats;
    const terms = Array.from({ length: floats }, (_, index) => {
      const factors = [read("cache", position, 4 * defines.QUERY_AT + head * floats + index), read("cache", key, keys + index)];
      return { name: `element ${index}`, factors, value: factors[0] * factors[1] };
    });
    const [sum, scale] = [sumOf(terms), Number(defines.SCORE_SCALE)];
    return {
      words: `Head ${head}: what the newest token looks for, times what ${token(key)} offers.`,
      columns: ["query", "key"],
      terms,
      sums: [["sum of the products", sum], [`times ${scale.toPrecision(4)}`, sum * scale]],
      exact: sum * scale,
    };
  },
  "cached_values.frag": ({ read, has, defines, values: { position }, token }, row, col) => {
    if (has("sinks") || defines.CACHE_SCALES_AT !== undefined) return null;
    const floats = 4 * defines.HEAD_TEXELS;
    const head = Math.floor(col / floats);
    const value = (defines.KV_HEADS + Math.floor(head / (defines.HEADS / defines.KV_HEADS))) * floats + (col % floats);
    const scores = Array.from({ length: position + 1 }, (_, key) => read("scores", Math.floor(key / SLOT), head * SLOT + (key % SLOT)));
    const largest = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - largest));
    const sum = powers.reduce((one, other) => one + other, 0);
    const terms = powers.map((power, key) => {
      const factors = [power / sum, read("cache", key, value)];
      return { name: token(key), factors, value: factors[0] * factors[1] };
    });
    return {
      words: `Head ${head}: the scores become shares, and element ${col % floats} of every token's value is added up with them.`,
      columns: ["share", "value"],
      terms,
      sums: [["sum of the products", sumOf(terms)]],
      exact: sumOf(terms),
    };
  },
};

/**
 * Explains an element of a draw's target.
 * @param {import("./recording.js").Recording} recording
 * @param {number} index of the draw.
 * @param {number} row
 * @param {number} col
 * @param {(id: number) => string} wordOf the text of a token.
 * @returns {Explanation|null} null where the page does not know the shader.
 */
export function explain(recording, index, row, col, wordOf) {
  const { plan, ids, values, steps } = recording;
  const draw = plan.draws[index];
  const { fragment, defines, samplers } = plan.programs[draw.program];
  const uniforms = { ...draw.uniforms, ...Object.fromEntries(Object.entries(draw.per_run).map(([name, key]) => [name, values[key]])) };
  const [target] = steps[index].outputs;
  const { layout } = plan.textures[target.texture];
  const word = (id) => shown(wordOf(id));
  const textureOf = (sampler) => draw.inputs[samplers.indexOf(sampler)];
  const read = (sampler, r, c) => elementIn(recording.before(textureOf(sampler), index), plan.textures[textureOf(sampler)].layout, r, c);
  const context = {
    ids,
    values,
    defines,
    uniforms,
    word,
    square: layout.rows > 1, // the probabilities of words are one row
    token: (index) => `token ${index} “${word(ids[index])}”`,
    matrixRow: (output) => (layout.cols === plan.model.config.vocab_size ? `the row of the word “${word(output)}”` : `row ${output} of the matrix`),
    has: (sampler) => samplers.includes(sampler),
    read,
    weights: () => {
      const { layout: packing } = plan.textures[textureOf("weight")];
      if (packing.kind === "packed") return null;
      return weightReader(recording.before(textureOf("weight"), index), packing, defines, (...at) => read("weight", ...at), (...at) => read("consts", ...at));
    },
  };
  const found = SHADERS[fragment]?.(context, row, col);
  return found ? { ...found, found: elementIn(target, layout, row, col) } : null;
}
