/**
 * Calls of an object in another thread: methods that return a promise or an async iterable. Callbacks and abort signals
 * among their arguments work while the call lasts. An iterable computes the next value on request, as in this thread.
 *
 * @typedef {Pick<MessagePort, "postMessage"|"addEventListener"> & {start?: () => void}} Port a worker, the inside of one, or
 *   one end of a channel.
 *
 * @typedef {object} Link to an object, in a worker or here.
 * @property {(name: string, ...given: any[]) => Promise<any>} call a method that gives one value.
 * @property {(name: string, ...given: any[]) => AsyncGenerator<any, any, any>} iterate over the values of a method; arguments
 *   of `next` become values of its `yield`.
 * @property {() => void} close releases the object, and ends its thread.
 */

import { GlinferError } from "./errors.js";
import { openContext } from "./limits.js";

const MARK = "glinfer-given";

/**
 * Lets another thread call the methods of an object.
 * @param {object} target
 * @param {Port} port to that thread.
 */
export function expose(target, port) {
  const running = new Map(); // iterators, by the call
  const signals = new Map(); // AbortControllers, by the call
  const answer = async (id, work) => {
    try {
      port.postMessage({ id, ...(await work()) });
    } catch (error) {
      signals.delete(id);
      running.delete(id);
      port.postMessage({ id, error: { name: error?.name, message: String(error?.message ?? error) } });
    }
  };
  const taken = (id, given) => {
    if (given?.[MARK] === "function") return (...values) => port.postMessage({ id, told: given.index, values });
    if (given?.[MARK] !== "signal") return given;
    const controller = new AbortController();
    if (given.aborted) controller.abort();
    signals.set(id, controller);
    return controller.signal;
  };
  port.addEventListener("message", ({ data: { id, call, given, iterates, next, leave, abort } }) => {
    if (abort) {
      signals.get(id)?.abort();
    } else if (call !== undefined) {
      const work = () => target[call](...given.map((each) => mapped(each, (value) => taken(id, value))));
      if (iterates) answer(id, async () => (running.set(id, work()[Symbol.asyncIterator]()), { begun: true }));
      else answer(id, async () => ({ value: await work() })).finally(() => signals.delete(id));
    } else {
      const iterator = running.get(id);
      answer(id, async () => {
        const { done = true, value } = (await (leave ? iterator?.return?.() : iterator?.next(next))) ?? {};
        if (done) {
          running.delete(id);
          signals.delete(id);
        }
        return { done, value };
      });
    }
  });
  port.start?.();
}

/**
 * The other end of `expose`.
 * @param {Port & ({terminate: () => void}|{close: () => void})} port
 * @returns {Link}
 */
export function connect(port) {
  const waiting = new Map(); // resolve and reject of pending answers, by the call
  const callbacks = new Map();
  let last = 0;
  let gone = null;
  const ask = (id, message) =>
    new Promise((resolve, reject) => {
      if (gone) return reject(gone);
      try {
        port.postMessage({ id, ...message });
      } catch (error) {
        return reject(new GlinferError(`an argument cannot be sent to the worker (${error.message}); expected plain values`));
      }
      waiting.set(id, { resolve, reject });
    });
  const end = (error) => {
    gone = error;
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  };
  port.addEventListener("message", ({ data: { id, told, values, error, ...found } }) => {
    if (told !== undefined) return callbacks.get(id)?.[told]?.(...values);
    const { resolve, reject } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (error) reject?.(errorOf(error));
    else resolve?.(found);
  });
  port.addEventListener("error", (event) => end(new GlinferError(`the worker stopped: ${/** @type {ErrorEvent} */ (event).message ?? "it could not be started"}; reload the page`)));
  port.start?.();
  /** The message for a call's arguments, and `done` to be called when it is over. */
  const begin = (given) => {
    const id = ++last;
    const functions = [];
    /** @type {(() => void)[]} */
    const endings = [() => callbacks.delete(id)];
    const sent = (value) => {
      if (typeof value === "function") return { [MARK]: "function", index: functions.push(value) - 1 };
      if (!(value instanceof AbortSignal)) return value;
      const abort = () => port.postMessage({ id, abort: true });
      value.addEventListener("abort", abort);
      endings.push(() => value.removeEventListener("abort", abort));
      return { [MARK]: "signal", aborted: value.aborted };
    };
    const message = given.map((each) => mapped(each, sent));
    callbacks.set(id, functions);
    return { id, given: message, done: () => endings.forEach((each) => each()) };
  };
  return {
    async call(name, ...all) {
      const { id, given, done } = begin(all);
      try {
        return (await ask(id, { call: name, given })).value;
      } finally {
        done();
      }
    },
    async *iterate(name, ...all) {
      const { id, given, done } = begin(all);
      let ended = true;
      try {
        await ask(id, { call: name, given, iterates: true });
        ended = false;
        for (let next; ; ) {
          const found = await ask(id, { next }).catch((error) => {
            ended = true;
            throw error;
          });
          ended = found.done;
          if (ended) return found.value;
          next = yield found.value;
        }
      } finally {
        if (!ended) await ask(id, { leave: true }).catch(() => {});
        done();
      }
    },
    close() {
      end(new GlinferError("the model was released; load it again"));
      if ("terminate" in port) port.terminate();
      else port.close();
    },
  };
}

/**
 * The same for an object in this thread.
 * @param {object} target
 * @returns {Link}
 */
export function direct(target) {
  return {
    call: async (name, ...given) => target[name](...given),
    async *iterate(name, ...given) {
      return yield* target[name](...given);
    },
    close: () => {},
  };
}

/**
 * Starts the work of a worker: reports whether it has WebGL2, and lets the page call the methods of an object.
 * @param {object} target
 */
export function serveWorker(target) {
  const port = /** @type {Port} */ (/** @type {unknown} */ (globalThis));
  expose(target, port);
  const gl = typeof OffscreenCanvas === "undefined" ? null : openContext(new OffscreenCanvas(1, 1));
  gl?.getExtension("WEBGL_lose_context")?.loseContext();
  port.postMessage({ able: gl !== null });
}

/**
 * Starts a worker that computes with WebGL2.
 * @param {() => Worker} start makes it.
 * @returns {Promise<Link|null>} null where this browser has none, or none that can compute.
 */
export async function startWorker(start) {
  if (typeof Worker === "undefined" || typeof OffscreenCanvas === "undefined") return null;
  let worker;
  try {
    worker = start();
  } catch {
    return null; // a page opened as a file, or a worker of another site
  }
  const able = await new Promise((resolve) => {
    worker.addEventListener("message", ({ data }) => resolve(data.able), { once: true });
    worker.addEventListener("error", () => resolve(false), { once: true });
  });
  if (able) return connect(worker);
  worker.terminate();
  return null;
}

/** A value with all parts of its arrays and plain objects as `change` makes them. Copies proxies of these, which cannot be sent. */
function mapped(given, change) {
  const changed = change(given);
  if (changed !== given || given === null || typeof given !== "object") return changed;
  if (Array.isArray(given)) return Array.from(given, (each) => mapped(each, change));
  if (Object.getPrototypeOf(given) !== Object.prototype) return given;
  return Object.fromEntries(Object.entries(given).map(([key, value]) => [key, mapped(value, change)]));
}

function errorOf({ name, message }) {
  if (name === "GlinferError") return new GlinferError(message);
  if (name === "AbortError") return new DOMException(message, name);
  return Object.assign(new Error(message), { name });
}
