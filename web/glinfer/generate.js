/** Token after token, with pauses in which the page can answer. */

const LONGEST_BUSY = 24; // milliseconds

/** Lets the page handle what has happened meanwhile; unlike a timer this is quick in a background tab, too. */
function breathe() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/**
 * Makes a function to be awaited again and again in long work: now and then it lets the page answer.
 * @returns {() => Promise<void>}
 */
export function pauses() {
  let since = performance.now();
  return async () => {
    if (performance.now() - since < LONGEST_BUSY) return;
    await breathe();
    since = performance.now();
  };
}

/**
 * Runs a prompt and yields the tokens that follow it. What the model holds already is not run again.
 * @param {Model} model
 * @param {Sampler} sampler
 * @param {{prompt: number[], count: number, stops: (id: number) => boolean, signal: AbortSignal,
 *   watch?: () => {draw: number, seen: () => void}|null}} options `count`: at most so many tokens; `stops`: the token
 *   ends the text, and is yielded last; `signal` ends it at the next token; `watch` is asked before each token, see
 *   `Replay.run`.
 * @yields {number} a token id.
 */
export async function* generate(model, sampler, { prompt, count, stops, signal, watch = () => null }) {
  const pause = pauses();
  let common = 0;
  while (common < prompt.length && model.ids[common] === prompt[common]) common++;
  model.rewind(model.ids.length - common);
  for (const id of prompt.slice(common)) {
    model.step(id);
    await pause();
    if (signal.aborted) return;
  }
  for (let made = 0; made < count && !signal.aborted; made++) {
    const id = sampler.sample(model.logits(watch()), model.ids);
    yield id;
    if (stops(id)) return;
    model.step(id);
    await pause();
  }
}
