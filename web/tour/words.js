/** What draws are called and what they do, in plain words, by their kind in the plan. */

/** What a draw is there for: a class of tour.css, a name, and the kinds of draws. The first that matches counts. */
export const ROLES = [
  { id: "embed", name: "Words to numbers", kinds: /^(embed|tokens)/ },
  { id: "choose", name: "Choosing the word", kinds: /^(lm_head|probs|pick|logits|cap)/ },
  { id: "norm", name: "Normalising", kinds: /(^|\.)(ln_|.*norm)/ },
  { id: "ask", name: "Queries, keys, values", kinds: /(q_proj|k_proj|v_proj|qkv|rope|turn|store)/ },
  { id: "score", name: "Scores", kinds: /scores/ },
  { id: "share", name: "Softmax", kinds: /(probs|stats)/ },
  { id: "mix", name: "Mixing values", kinds: /(mixed|values|delta|ssm|conv)/ },
  { id: "copy", name: "Copying heads", kinds: /joined|heads|last_row/ },
  { id: "add", name: "Back to the stream", kinds: /(out_proj|fc_out|down|sum|residual)/ },
  { id: "mlp", name: "MLP", kinds: /(mlp|fc_in|gate|up|expert|route)/ },
];
const OTHER = { id: "copy", name: "Other" };

/** The role of a draw, by its kind. */
export function roleOf(kind) {
  return ROLES.find(({ kinds }) => kinds.test(kind)) ?? OTHER;
}

/** Title and sentence of each kind. */
const KINDS = {
  embed: ["Embedding", "Looks up each token's numbers in a table, and adds those of its position. From here on, a token is a row of numbers, called the stream."],
  ln_1: ["Norm before attention", "Brings each row to mean 0 and spread 1, then scales and shifts every column, so no row shouts louder than another."],
  ln_2: ["Norm before the MLP", "Brings each row to mean 0 and spread 1 again, before the MLP reads it."],
  ln_f: ["Final norm", "Normalises the finished stream before it is compared with every word of the vocabulary."],
  "attn.norm": ["Norm before attention", "Brings the spread of each row to 1, then scales every column. One draw may compute the spread, and a second one use it."],
  "mlp.norm": ["Norm before the MLP", "Brings the spread of each row to 1 again, before the MLP reads it."],
  "attn.rope": ["Rotating by position", "Rotates pairs of numbers by an angle that grows with the position, so queries and keys know how far apart they are."],
  "attn.heads": ["Sorting by heads", "Puts the numbers of each head together."],
  residual: ["Adding to the stream", "Adds the block's result to the stream."],
  "mlp.gate_proj": ["MLP gate", "Multiplies each row by a wide matrix. Each result says how far a detector opens."],
  "mlp.up_proj": ["MLP values", "Multiplies each row by a second wide matrix: what each detector lets through where it is open."],
  "mlp.gate": ["Closing the gates", "Multiplies values and gates, after the activation function has closed most of them."],
  "mlp.down_proj": ["MLP, second half", "Each open detector gives its own pattern of numbers."],
  "attn.q_proj": ["Queries", "Multiplies each row by a matrix. The result is what a token looks for in the tokens before it."],
  "attn.k_proj": ["Keys", "Multiplies each row by another matrix. The result is what others can find a token by."],
  "attn.v_proj": ["Values", "Multiplies each row by a third matrix. The result is what a token passes to those that look at it."],
  "attn.qkv": ["Norm, keys, values and queries", "One pass normalises the newest row, computes its key, value and query, and stores key and value in the cache. Those of earlier tokens are already there."],
  "attn.scores": ["Scores", "Compares queries with keys: a large score means “look here”. A token cannot look ahead, so later keys are masked."],
  "attn.probs": ["Softmax", "Turns each row of scores into shares that add up to 1. This is where the head looks."],
  "attn.mixed": ["Mixing values", "Adds up the values of all tokens, each times its share. This is what the head has found."],
  "attn.values": ["Softmax and mixing values", "Turns the scores of every head into shares, and adds up the cached values, weighted by the shares, in one pass."],
  "attn.joined": ["Copying a head", "Copies the result of one head into its columns next to the others. A draw cannot read its own target, so two textures alternate."],
  "attn.out_proj": ["Back to the stream", "Multiplies what the heads have found by a matrix, and adds it to the stream."],
  "mlp.fc_in": ["MLP, first half", "Multiplies each row by a wide matrix. Each result is a detector: the activation function lets it through or blocks it."],
  "mlp.fc_out": ["MLP, second half", "Each open detector adds its own pattern of numbers to the stream."],
  lm_head: ["Logits", "Compares the last row with every word of the vocabulary. A logit is a score for “this word comes next”."],
  probs: ["Probabilities", "Turns the logits into probabilities that add up to 1."],
  pick: ["Candidates", "Finds the best words and leaves them in a texture, so the next token can start without waiting for the processor."],
};

/**
 * The title of a draw: block, head and role.
 * @param {{name: string, kind: string}} draw
 * @returns {string}
 */
export function titleOf({ name, kind }) {
  const [, block] = /^h\.(\d+)\./.exec(name) ?? [];
  const [, head] = /\.head\.(\d+)\./.exec(name) ?? [];
  const parts = [block && `Block ${block}`, head && `head ${head}`].filter(Boolean);
  const what = KINDS[kind]?.[0] ?? kind;
  return parts.length ? `${parts.join(", ")}: ${/^.[A-Z]/.test(what) ? what : what.charAt(0).toLowerCase() + what.slice(1)}` : what;
}

/** A sentence or two on what a draw does. */
export function sentenceOf(kind) {
  return KINDS[kind]?.[1] ?? "";
}

const SHORT = { "mlp.fc_in": "MLP in", "mlp.fc_out": "MLP out", "attn.out_proj": "attn out", lm_head: "logits", ln_f: "norm" };

/** The short name of a kind, for cells of the timeline. */
export function shortOf(kind) {
  return SHORT[kind] ?? kind.split(".").at(-1).replace("_proj", "");
}

/** A token as it is shown: spaces and ends of lines can be seen. */
export function shown(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";
}

/** A number with four digits. */
export function number(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(3).replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** A float32 number with all its digits, so that equal text is equal bits. */
export function exactly(value) {
  for (let digits = 1; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return text.replaceAll("-", "−");
  }
  return Number.isFinite(value) ? value.toPrecision(9).replaceAll("-", "−") : number(value);
}

/** A count of bytes. */
export function bytes(count) {
  if (count < 1000) return `${count} bytes`;
  return count < 1e6 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}
