/**
 * Eight short chapters. Each opens the page in a state: a plan, the name of a draw, perhaps an element of it, a token,
 * or a part of the page.
 */

/**
 * @typedef {object} Chapter
 * @property {string} id its name in the address.
 * @property {string} title
 * @property {string[]} text paragraphs, with {reference}, {fast} and {main} for the numbers of draws.
 * @property {string} [alone] the last paragraph on a page that has only the fast plan.
 * @property {"reference"|"fast"|"both"} view
 * @property {RegExp[]} draw match the name of the draw; the first that any draw has.
 * @property {[number, number]} [texel] row and column of an element; a negative row counts from the last token.
 * @property {string} [part] the id of the part of the page to look at.
 * @property {string} [action] a button: `verify`.
 */

/** @type {Chapter[]} */
export const CHAPTERS = [
  {
    id: "textures",
    title: "Why textures?",
    text: [
      "A graphics card paints millions of dots at once. Each dot is the result of a tiny program, a shader, that may read pictures and write one colour.",
      "A language model is multiplication and addition, millions of times. So we keep its numbers in pictures, called textures, and let shaders do the sums. Blue is below zero, red above.",
      "One “paint this picture” is a draw. To find the next word, the model here needs {main} of them. Press Play, or the right arrow, and watch.",
    ],
    view: "reference",
    draw: [/^embed/],
    part: "timeline",
  },
  {
    id: "embedding",
    title: "Embedding",
    text: [
      "The text is cut into tokens: words, or pieces of words. Each has a number, its id, shown below it.",
      "A number like 356 means nothing by itself. So the first draw looks up a row of numbers for each token in a table. Some models, such as Gab and GPT-2, add a row for its position; others rotate queries and keys by it later.",
      "Below, each line is a token. Click a square to see which numbers make it up. Training found these tables; nobody wrote them.",
    ],
    alone: "Below is the row of the newest token. Click a square to see which numbers make it up. Training found these tables; nobody wrote them.",
    view: "reference",
    draw: [/^embed/],
    texel: [-1, 17],
    part: "draw",
  },
  {
    id: "norm",
    title: "Norm",
    text: [
      "After many additions, some rows have large numbers and some have small ones. A norm makes them comparable, as a teacher rescales marks.",
      "LayerNorm subtracts the row's mean, divides by its spread, and applies a learned weight and shift to each column. RMSNorm, in most newer models, omits mean and shift.",
      "Compare “What it wrote” with “What it read”: the pattern stays, the scale changes. Most models do this twice per block.",
    ],
    alone: "In the fast plan, a norm is part of the product after it, so no picture shows its result. Click a square to see the row's spread.",
    view: "reference",
    draw: [/ln_1/, /norm$/, /qkv/],
    texel: [-1, 3],
    part: "draw",
  },
  {
    id: "attention",
    title: "Attention head by head",
    text: [
      "Attention lets a token look back at earlier ones. It asks with a query, each earlier token answers with a key, and query times key is a score.",
      "Softmax turns a row of scores into shares of 100%. The token then takes a mix of the others' values, weighted by these shares.",
      "A head is one way of looking back. Its softmax has a line for each token, and a column for each token that it looks at. The upper right is empty, since no token looks ahead. Step through the draws, or compare all heads in “Where it looks”.",
    ],
    alone: "A head is one way of looking back. This draw computes the shares of all heads and mixes the values. “Where it looks” shows the shares of the newest token.",
    view: "reference",
    draw: [/h\.1\.attn\.head\.2\.probs/, /attn\.probs$/, /attn\.values/],
    texel: [-1, 3],
    part: "draw",
  },
  {
    id: "mlp",
    title: "MLP",
    text: [
      "After attention, each token is processed by itself. A wide matrix compares its row with many patterns, called detectors.",
      "The activation function lets strong matches through and blocks the rest. That is why most of this picture has little colour.",
      "The next matrix turns the open detectors into numbers, which are added to the stream. In most models, the MLPs hold most of the numbers.",
    ],
    view: "reference",
    draw: [/h\.2\.mlp\.fc_in/, /mlp\.(fc_in|hidden|gate)$/, /mlp/],
    texel: [-1, 40],
    part: "draw",
  },
  {
    id: "sampling",
    title: "Logits and sampling",
    text: [
      "At the end, the last row is compared with every word. The result is a logit for each word: how well it fits as the next one.",
      "Then chance comes in. Each logit is divided by the temperature, and a little luck is added; the highest sum wins.",
      "Turn the temperature down to 0, and the likeliest word always wins. Turn it up, and unlikely words get a chance. Append the winner, and all draws start over.",
    ],
    view: "reference",
    draw: [/^lm_head/],
    part: "token",
  },
  {
    id: "fusing",
    title: "From {reference} to {fast}",
    text: [
      "The first engine computes all tokens again for each new word, one small step per draw. That is easy to read, but slow.",
      "The fast plan keeps the keys and values of earlier tokens, so it computes only the newest token. It also joins steps: all heads in one draw, the norm inside the product.",
      "Colours show which of the {fast} draws does the work of each of the {reference}. Click a draw to outline its counterparts. Both plans give the same logits, up to the last digits.",
    ],
    alone: "This page has only the fast plan, with {fast} draws. The page of glinfer tour shows both.",
    view: "both",
    draw: [/h\.2\.attn\.head\.3\.probs/, /attn\.probs$/, /attn\.values/],
    part: "timeline",
  },
  {
    id: "round-trip",
    title: "Round trip",
    text: [
      "How do we know that the card has the numbers that we gave it? With a wrong filter or a swapped matrix, the text may still read well.",
      "So we read back every weight texture, and compare it with the file, bit for bit.",
      "Then we recompute samples of each draw in double precision, on the processor. Only rounding may differ. If the page has “Break it” below, plant typical bugs there and see which checks find them.",
    ],
    view: "reference",
    draw: [/h\.0\.attn\.q_proj/, /linear/, /attn/],
    texel: [-1, 5],
    part: "draw",
    action: "verify",
  },
];
