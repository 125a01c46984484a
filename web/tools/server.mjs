// A server of static files for the scripts that open exported sites.

import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };
const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cache-Control": "no-cache",
};
const OF_MODEL = /^\/(weights|shaders\/|tokenizer\.json|plan\.json)/;

/** A server of static files with ranges and entity tags, which counts what it sends. */
export async function serve(folder) {
  const sent = { model: 0, page: 0, requests: 0 };
  const server = createServer((request, response) => {
    const url = decodeURIComponent(request.url.split("?")[0]);
    const file = path.join(folder, path.normalize(url.endsWith("/") ? `${url}index.html` : url));
    const about = statSync(file, { throwIfNoEntry: false });
    if (!about?.isFile()) return response.writeHead(404, HEADERS).end();
    sent.requests += 1;
    const tag = `"${about.mtimeMs.toString(16)}-${about.size.toString(16)}"`;
    if (request.headers["if-none-match"] === tag) return response.writeHead(304, { ...HEADERS, ETag: tag }).end();
    const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? [];
    const [start, end] = first === undefined ? [0, about.size - 1] : [Number(first), Math.min(Number(last), about.size - 1)];
    sent[OF_MODEL.test(url) ? "model" : "page"] += end - start + 1;
    response.writeHead(first === undefined ? 200 : 206, {
      ...HEADERS,
      ETag: tag,
      "Content-Type": TYPES[path.extname(file)] ?? "application/octet-stream",
      "Content-Length": end - start + 1,
      ...(first === undefined ? {} : { "Content-Range": `bytes ${start}-${end}/${about.size}` }),
    });
    createReadStream(file, { start, end }).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, sent, address: `http://127.0.0.1:${server.address().port}/` };
}
