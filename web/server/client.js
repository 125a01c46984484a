/** Requests to the server that the page came from, by OpenAI's routes. */

import { GlinferError } from "../glinfer/errors.js";

const GONE = "the server does not answer; check that 'glinfer serve' is running, and try again";
const BROKE = "the connection to the server was lost; check that 'glinfer serve' is running, and send the message again";

/** What the server has refused, with its status and code. */
export class ServerError extends GlinferError {
  /**
   * @param {string} message
   * @param {number} status of HTTP; 0 inside a stream.
   * @param {string|null} code a word for programs.
   */
  constructor(message, status, code) {
    super(message);
    this.name = "ServerError";
    Object.assign(this, { status, code });
  }
}

/**
 * The data of server-sent events, as they come.
 * @param {ReadableStream<Uint8Array>} stream
 * @yields {string} the data of one event.
 */
export async function* eventsOf(stream) {
  let rest = "";
  for await (const text of piecesOf(stream)) {
    const events = (rest + text).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}

async function* piecesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // the rest is not wanted, or the connection is gone already
  }
}

/** The routes of one server. */
export class Client {
  /** @param {string|URL} base the address of the server. */
  constructor(base) {
    this.base = base;
    this.key = "";
  }

  /**
   * Asks a route.
   * @param {string} path of the route.
   * @param {object|null} body what is posted; nothing is for a GET.
   * @param {AbortSignal} [signal]
   * @returns {Promise<Response>} a good answer.
   * @throws {ServerError} the server refuses; GlinferError: it cannot be reached.
   */
  async ask(path, body = null, signal) {
    const headers = {};
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (body) headers["Content-Type"] = "application/json";
    const content = body && { method: "POST", body: JSON.stringify(body) };
    // Without credentials the browser does not ask for a password of its own where a key is missing.
    const options = { headers, signal, credentials: "omit", cache: "no-store", ...content };
    let answer;
    try {
      answer = await fetch(new URL(path, this.base), options);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new GlinferError(GONE);
    }
    if (answer.ok) return answer;
    const found = await answer.json().catch(() => null);
    throw errorOf(found?.error, answer.status);
  }

  /**
   * Asks a route for JSON.
   * @returns {Promise<object>}
   * @throws as `ask`.
   */
  async json(path, body = null, signal) {
    return (await this.ask(path, body, signal)).json();
  }

  /**
   * Asks a route for a stream.
   * @yields {object} each chunk, up to `[DONE]`.
   * @throws as `ask`; ServerError and GlinferError too where the stream ends before its end.
   */
  async *stream(path, body, signal) {
    const answer = await this.ask(path, { ...body, stream: true }, signal);
    try {
      for await (const data of eventsOf(answer.body)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw errorOf(chunk.error, 0);
        yield chunk;
      }
    } catch (error) {
      if (signal?.aborted || error instanceof GlinferError) throw error;
    }
    throw new GlinferError(BROKE);
  }
}

function errorOf(error, status) {
  // Of a wrong key the rest is advice on headers, which the page sends.
  const message = error?.code === "invalid_api_key" ? error.message.split(";")[0] : error?.message;
  return new ServerError(message ?? `the server answered ${status}`, status, error?.code ?? null);
}
