/** Lets the page of a site open again where its server cannot be reached: ../offline.js is the service worker that does it. */

import { forgetOffline } from "../glinfer/kept.js";

const SCRIPT = "offline.js";

/** The service worker of this page's scope, and whether it is that. */
async function registered(site) {
  const found = await navigator.serviceWorker.getRegistration(site);
  if (found?.scope !== site) return null;
  const { scriptURL } = found.active ?? found.waiting ?? found.installing;
  return { found, ours: scriptURL.split("?")[0] === site + SCRIPT };
}

/**
 * Has the files of the page kept, if the browser can; called when the model is ready.
 * @param {{offline?: {version: string}|null}} plan plan.json, which a single file has without `offline`.
 * @param {URLSearchParams} asked `cache=0` and `offline=0` keep nothing.
 */
export async function keepPage({ offline }, asked) {
  if (!offline || !("serviceWorker" in navigator) || ["cache", "offline"].some((name) => asked.get(name) === "0")) return;
  const site = new URL(".", document.baseURI).href;
  try {
    const before = await registered(site);
    if (before && !before.ours) return; // somebody has put a worker of their own there
    await navigator.serviceWorker.register(`${site}${SCRIPT}?${offline.version}`, { updateViaCache: "none" });
  } catch {
    // This window may not keep anything, or the server is away.
  }
}

/**
 * Lets go of all of it where the page's address says so.
 * @param {URLSearchParams} asked `offline=0` does.
 */
export async function leavePage(asked) {
  if (asked.get("offline") !== "0" || !("serviceWorker" in navigator)) return;
  const site = new URL(".", document.baseURI).href;
  const before = await registered(site).catch(() => null);
  if (before?.ours) await before.found.unregister();
  await forgetOffline(site);
}
