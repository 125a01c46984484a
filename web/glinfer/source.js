/**
 * The files of an exported model. In a page that holds all of them itself, embedded.js makes fetch find them there.
 */

import { GlinferError } from "./errors.js";

const MEGABYTE = 1e6;

/**
 * Where files come from. `text`, `bytes` and `pieces` raise a GlinferError where there is no such file, `optional` gives
 * null. `pieces` gives the bytes in order, as they come, and of the file as it is now.
 * @typedef {{text: (path: string) => Promise<string>, optional: (path: string) => Promise<string|null>,
 *   bytes: (path: string, onProgress?: (text: string) => void) => Promise<ArrayBuffer>,
 *   pieces: (path: string) => AsyncIterable<Uint8Array>}} Source
 */

/**
 * The files below an address.
 * @param {string|URL} base the address of plan.json, or of a page beside it.
 * @returns {Source}
 */
export function fetchSource(base) {
  const get = async (path, options) => {
    try {
      return await fetch(new URL(path, base), options);
    } catch {
      const local = String(base).startsWith("file:");
      const advice = local ? "serve the folder with: glinfer serve-web" : "check the connection, and reload the page";
      throw new GlinferError(`${path} could not be loaded; ${advice}`);
    }
  };
  const found = (path, response) => {
    if (!response.ok) throw new GlinferError(`${path} could not be loaded: the server answered ${response.status}`);
    return response;
  };
  return {
    text: async (path) => found(path, await get(path)).text(),
    optional: async (path) => {
      const response = await get(path);
      return response.status === 404 ? null : found(path, response).text();
    },
    bytes: async (path, onProgress) => withProgress(found(path, await get(path)), onProgress),
    pieces: (path) => piecesOf(async () => found(path, await get(path, { cache: "no-cache" })), path),
  };
}

async function* piecesOf(open, path) {
  const reader = (await open()).body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw new GlinferError(`${path} could not be loaded: the connection broke; check it, and try again`);
      });
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // the rest is not wanted, or the connection is gone already
  }
}

async function withProgress(response, onProgress = () => {}) {
  const total = Number(response.headers.get("Content-Length"));
  const packed = response.headers.get("Content-Encoding");
  if (!total || packed || !response.body) return response.arrayBuffer();
  const bytes = new Uint8Array(total);
  let at = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    if (at + value.length > total) throw new GlinferError("the server sent more bytes than it had announced");
    bytes.set(value, at);
    at += value.length;
    onProgress(`${(at / MEGABYTE).toFixed(0)} of ${(total / MEGABYTE).toFixed(0)} MB`);
  }
  if (at < total) throw new GlinferError(`the connection broke after ${at} of ${total} bytes; reload the page`);
  return bytes.buffer;
}

/**
 * The bytes that base64 stands for.
 * @param {string} base64
 * @returns {Uint8Array}
 */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
