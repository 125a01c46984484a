/** What peers tell of a row of logits, so that models can be compared whatever else they give. */

/** The index of the largest of some numbers. */
export function argmax(logits) {
  return logits.reduce((best, each, index) => (each > logits[best] ? index : best), 0);
}

/** The likeliest tokens of a row of logits: `[id, natural logarithm of its probability]`, best first. */
export function likeliest(logits, count) {
  const most = logits[argmax(logits)];
  const total = most + Math.log(logits.reduce((sum, each) => sum + Math.exp(each - most), 0));
  const order = Array.from(logits.keys()).sort((one, other) => logits[other] - logits[one]);
  return order.slice(0, count).map((id) => [id, logits[id] - total]);
}
