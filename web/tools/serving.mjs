// A server of what pages of a benchmark read, on this machine alone.

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
};

/**
 * Starts a server.
 * @param {(url: string, query: URLSearchParams) => Promise<Buffer|string>|string} contents of an address; what it throws
 *     means that there is nothing.
 */
export async function serve(contents) {
  const server = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url, "http://localhost");
    const url = path.posix.normalize(decodeURIComponent(pathname));
    try {
      const body = await contents(url, searchParams);
      const type = TYPES[path.extname(url) || ".html"] ?? "application/octet-stream";
      const length = Buffer.byteLength(body);
      response.writeHead(200, { ...HEADERS, "Content-Type": type, "Content-Length": length }).end(body);
    } catch {
      response.writeHead(404, HEADERS).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}` };
}
