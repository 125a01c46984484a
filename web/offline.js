/**
 * The service worker of an exported site, by which its page opens again where the server cannot be reached.
 *
 * Where the server answers, all comes from it, as without this worker. Where it does not when the page is opened, that page
 * has every file from the version that is kept, and none from the server, whatever that answers later: no page has files of
 * two exports. A version is what plan.json lists under `offline`, with the SHA-256 of each file, and is kept as a whole or not
 * at all. The address of this script ends with the version's name, so that each version has a worker of its own; page/offline.js
 * registers it. Weights, shaders and the tokenizer are kept by glinfer/kept.js, and not here.
 */

const SITE = new URL(".", self.location.href).href;
const VERSION = self.location.search.slice(1);
const OURS = `glinfer-offline ${SITE} `;
const OPENED = `${OURS}opened`; // a cache of the versions that open pages have, by the numbers of their clients
const [PAGE, PLAN] = ["index.html", "plan.json"];
const CLIENTS = "https://clients.invalid/"; // keys are addresses, which nobody asks
const BROKEN = 500; // and above: a server whose files cannot be had now

/** Versions of clients, as far as this worker knows since it was started; null for those that have the server. */
const versions = new Map();

const addressOf = (name) => new URL(name, SITE).href;

/** The name of a file of this site, or null for an address elsewhere. */
function nameOf(address) {
  const bare = address.split(/[?#]/)[0];
  return bare.startsWith(SITE) ? bare.slice(SITE.length) || PAGE : null;
}

/** Asks the server for a file, whatever the browser's own cache has. */
async function ask(name) {
  const answer = await fetch(addressOf(name), { cache: "no-cache" });
  if (!answer.ok) throw new Error(`${name} could not be loaded: the server answered ${answer.status}`);
  return answer;
}

/** What is kept of an answer: its bytes as they were sent, without what is said of the way. */
function keptAnswer(bytes, { headers }) {
  const told = new Headers(headers);
  for (const name of ["Content-Encoding", "Content-Length"]) told.delete(name);
  return new Response(bytes, { headers: told });
}

/** A file of the version. */
async function listed(name, sha256) {
  const answer = await ask(name);
  const bytes = await answer.arrayBuffer();
  const digest = Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (byte) => byte.toString(16).padStart(2, "0"));
  if (digest.join("") !== sha256) throw new Error(`${name} is not the file that plan.json was written with`);
  return keptAnswer(bytes, answer);
}

/** Keeps all files of this version; the plan is the last, and says that all are there. */
async function fill() {
  const answer = await ask(PLAN);
  const bytes = await answer.arrayBuffer();
  const { offline } = JSON.parse(new TextDecoder().decode(bytes));
  if (offline?.version !== VERSION) throw new Error("the server has another version by now");
  const files = await Promise.all(Object.entries(offline.files).map(async ([name, sha256]) => [name, await listed(name, sha256)]));
  const store = await caches.open(OURS + VERSION);
  for (const [name, file] of files) await store.put(addressOf(name), file);
  await store.put(addressOf(PLAN), keptAnswer(bytes, answer));
}

/** Keeps the files again where the browser has let go of them, but of this version alone. */
async function mend() {
  if (!(await find(VERSION, PLAN))) await fill().catch(() => {});
}

/** A file of a version that is kept as a whole; undefined where it is not. */
async function find(version, name) {
  if (!(await caches.has(OURS + version))) return undefined;
  const store = await caches.open(OURS + version);
  const whole = await store.match(addressOf(PLAN), { ignoreVary: true });
  return whole && store.match(addressOf(name), { ignoreVary: true });
}

/** Remembers which version a client has, for as long as it is there. */
async function remember(id, version) {
  versions.set(id, version);
  await (await caches.open(OPENED)).put(CLIENTS + id, new Response(version));
}

/** The version that a client has; null for one that has the server. */
async function versionOf(id) {
  if (!versions.has(id)) versions.set(id, (await (await (await caches.open(OPENED)).match(CLIENTS + id))?.text()) ?? null);
  return versions.get(id);
}

/** The versions of clients that are there; what was remembered of others is forgotten. */
async function versionsInUse() {
  const [store, found] = [await caches.open(OPENED), new Set()];
  for (const { url } of await store.keys()) {
    const id = url.slice(CLIENTS.length);
    if (await self.clients.get(id)) found.add(await versionOf(id));
    else await store.delete(url);
  }
  return found;
}

/** Lets go of versions that nobody has any more. */
async function tidy() {
  const used = new Set([VERSION, ...(await versionsInUse())].map((version) => OURS + version));
  const ours = (await caches.keys()).filter((name) => name.startsWith(OURS) && name !== OPENED);
  await Promise.all(ours.filter((name) => !used.has(name)).map((name) => caches.delete(name)));
}

/** Answers with the page: the server's, or where that cannot be reached the one that is kept. */
async function openPage(event) {
  const { request, resultingClientId: id } = event;
  const asked = await fetch(request, { cache: "no-cache" }).catch(() => null);
  const kept = !asked || asked.status >= BROKEN ? await find(VERSION, PAGE) : undefined;
  if (!kept) {
    versions.set(id, null);
    if (asked?.ok) event.waitUntil(mend());
    return asked ?? Response.error();
  }
  await versionsInUse();
  await remember(id, VERSION);
  return kept;
}

/** Answers a client: from its version, or as if this worker were not there. */
async function answer({ request, clientId, resultingClientId }) {
  const version = await versionOf(clientId);
  if (version === null) return fetch(request);
  if (resultingClientId) await remember(resultingClientId, version); // a worker, which has the version of its page
  return (await find(version, nameOf(request.url))) ?? Response.error();
}

self.addEventListener("install", (event) => event.waitUntil(fill().then(() => self.skipWaiting())));

self.addEventListener("activate", (event) => event.waitUntil(tidy()));

self.addEventListener("fetch", (event) => {
  const { request, clientId, resultingClientId } = event;
  const name = nameOf(request.url);
  if (request.method !== "GET" || name === null) return;
  if (request.mode === "navigate") {
    if (name === PAGE) event.respondWith(openPage(event));
  } else if (versions.get(clientId) !== null) {
    event.respondWith(answer(event));
  } else if (resultingClientId) {
    versions.set(resultingClientId, null);
  }
});
