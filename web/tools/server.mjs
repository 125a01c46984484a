// Servers of what pages of scripts read, on this machine alone: the files of a folder, or what a function gives.

import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";

const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".wasm": "application/wasm",
};
const HEADERS = {
  // A page that is alone in its process measures times more finely, and WebAssembly has threads there.
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cache-Control": "no-cache",
};
const OF_MODEL = /^\/(weights|shaders\/|tokenizer\.json|plan\.json)/;

const typeOf = (name) => TYPES[path.extname(name) || ".html"] ?? "application/octet-stream";

/** Starts a server; gives it and its address, without a slash at the end. */
async function listening(answer) {
  const server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url, "http://localhost");
    return answer(path.posix.normalize(decodeURIComponent(pathname)), request, response, searchParams);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}` };
}

/**
 * Serves what a function gives.
 * @param {(url: string, query: URLSearchParams) => Promise<Buffer|string>|string} contents of an address; what it throws
 *     means that there is nothing.
 */
export function serveContents(contents) {
  return listening(async (url, _, response, query) => {
    try {
      const body = await contents(url, query);
      const length = Buffer.byteLength(body);
      response.writeHead(200, { ...HEADERS, "Content-Type": typeOf(url), "Content-Length": length }).end(body);
    } catch {
      response.writeHead(404, HEADERS).end();
    }
  });
}

/** Serves the files of a folder with ranges and entity tags, and counts in `sent` what it sends. */
export async function serveFolder(folder) {
  const sent = { model: 0, page: 0, requests: 0 };
  const found = await listening((url, { headers }, response) => {
    const file = path.join(folder, url.endsWith("/") ? `${url}index.html` : url);
    const about = statSync(file, { throwIfNoEntry: false });
    if (!about?.isFile()) return response.writeHead(404, HEADERS).end();
    sent.requests += 1;
    const tag = `"${about.mtimeMs.toString(16)}-${about.size.toString(16)}"`;
    if (headers["if-none-match"] === tag) return response.writeHead(304, { ...HEADERS, ETag: tag }).end();
    const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(headers.range ?? "") ?? [];
    const [start, end] = first === undefined ? [0, about.size - 1] : [Number(first), Math.min(Number(last), about.size - 1)];
    sent[OF_MODEL.test(url) ? "model" : "page"] += end - start + 1;
    response.writeHead(first === undefined ? 200 : 206, {
      ...HEADERS,
      ETag: tag,
      "Content-Type": typeOf(file),
      "Content-Length": end - start + 1,
      ...(first === undefined ? {} : { "Content-Range": `bytes ${start}-${end}/${about.size}` }),
    });
    return createReadStream(file, { start, end }).pipe(response);
  });
  return { ...found, sent };
}
