// In a page that `glinfer export-web --single-file` wrote: fetch finds the site's files in the page itself.
// Each is one or more <script type="text/plain" data-file="NAME">, pieces of base64 in order. A classic script, so that
// it has run before any module does.
(() => {
  "use strict";
  const CHUNK = 4 << 18; // characters of base64 that are decoded at once; a multiple of 4
  const TYPES = { json: "application/json", safetensors: "application/octet-stream" };
  const network = globalThis.fetch.bind(globalThis);

  /** The bytes of one element, as Blob parts. */
  function decoded(text) {
    const parts = [];
    for (let start = 0; start < text.length; start += CHUNK) {
      const letters = atob(text.slice(start, start + CHUNK));
      const bytes = new Uint8Array(letters.length);
      for (let index = 0; index < bytes.length; index++) bytes[index] = letters.charCodeAt(index); // four times as fast as from()
      parts.push(bytes);
    }
    return parts;
  }

  /** The name of a file of this site that a request is for, or null where it is for something else. */
  function nameOf(request) {
    const url = new URL(request instanceof Request ? request.url : request, document.baseURI);
    const folder = new URL(".", document.baseURI).href.split(/[?#]/)[0];
    return url.href.startsWith(folder) ? decodeURIComponent(url.href.slice(folder.length).split(/[?#]/)[0]) : null;
  }

  globalThis.fetch = async (request, options) => {
    const name = nameOf(request);
    if (name === null) {
      return network(request, options);
    }
    const elements = document.querySelectorAll(`script[data-file="${CSS.escape(name)}"]`);
    if (elements.length === 0) {
      return new Response(`${name} is not in this page`, { status: 404, statusText: "Not Found" });
    }
    const blob = new Blob(Array.from(elements, (element) => decoded(element.textContent)).flat());
    const headers = {
      "Content-Type": TYPES[name.split(".").pop()] ?? "text/plain; charset=utf-8",
      "Content-Length": String(blob.size),
    };
    return new Response(blob, { status: 200, headers });
  };
})();
