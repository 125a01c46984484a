// WebKitGTK's small browser by its WebKitWebDriver, with the methods of Playwright's browsers and pages that drive.mjs needs for
// jobs; Playwright drives only a WebKit of its own. W3C's WebDriver has no scripts that run before a page's own and does not
// tell what a page says: both begin as soon as the page can be reached, while its modules or its model are on their way.

import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";

import { start, startScreen } from "./screen.mjs";

const LONGEST = 600_000; // milliseconds for one script
const POLL = 50; // milliseconds between questions whether the driver answers

/** Before all else that is run in a page: notes what it says, in the form that `on` gives its listeners. */
function listen() {
  globalThis.said = [];
  for (const type of ["error", "warn"]) {
    const original = console[type];
    console[type] = (...values) => {
      globalThis.said.push({ name: "console", type: type === "warn" ? "warning" : type, text: values.join(" ") });
      original.apply(console, values);
    };
  }
  const thrown = (text) => globalThis.said.push({ name: "pageerror", text });
  addEventListener("error", ({ message }) => thrown(message));
  addEventListener("unhandledrejection", ({ reason }) => thrown(String(reason)));
}

/** Commands of W3C's WebDriver; https://www.w3.org/TR/webdriver2/ */
class Connection {
  constructor(address) {
    this.address = address;
  }

  async send(method, command, given) {
    const body = given === undefined ? undefined : JSON.stringify(given);
    const response = await fetch(this.address + command, { method, body });
    const { value } = await response.json();
    if (!response.ok) throw new Error(`${value.error}: ${value.message}`);
    return value;
  }

  /** Waits until the driver answers, or has ended. */
  async ready(ended) {
    let gone = false;
    ended.then(() => (gone = true));
    while (!gone) {
      const status = await this.send("GET", "/status").catch(() => null);
      if (status?.ready) return;
      await new Promise((resolve) => setTimeout(resolve, POLL));
    }
    throw new Error("WebKitWebDriver ended at once");
  }
}

/** In the page: waits until its modules have run. */
function loaded() {
  return new Promise((resolve) => {
    if (document.readyState === "complete") resolve();
    else addEventListener("load", () => resolve());
  });
}

/** The tab of a session. Arguments and results of functions pass as JSON. */
class Page {
  constructor(connection, session) {
    this.connection = connection;
    this.session = session;
    this.first = [listen];
    this.listeners = new Map();
  }

  setDefaultTimeout() {} // scripts have LONGEST

  /** "console", with a message as Playwright has it, and "pageerror"; other events never come. */
  on(name, listener) {
    this.listeners.set(name, listener);
  }

  addInitScript(script) {
    this.first.push(script);
  }

  async goto(url) {
    await this.send("/url", { url });
    for (const script of [...this.first, loaded]) await this.evaluate(script);
  }

  async evaluate(script, given) {
    const { value, error, said } = await this.send("/execute/async", {
      script: `const [given, done] = arguments;
        const tell = (found) => done({ ...found, said: (globalThis.said ?? []).splice(0) });
        Promise.resolve(given).then(${script}).then((value) => tell({ value: JSON.stringify(value ?? null) }), (error) => tell({ error: String(error) }));`,
      args: [given ?? null],
    });
    for (const { name, type, text } of said) {
      const message = { type: () => type, text: () => text, location: () => ({ url: "" }) };
      this.listeners.get(name)?.(name === "console" ? message : text);
    }
    if (error) throw new Error(error);
    return JSON.parse(value);
  }

  send(command, given) {
    return this.connection.send("POST", `/session/${this.session}${command}`, given);
  }
}

/** A port that nobody listens at: the driver takes none that is free by itself. */
async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Starts WebKitGTK's browser, in an empty home that is removed when it closes. */
export async function launchWebKit(executable) {
  const screen = await startScreen();
  const home = mkdtempSync(path.join(tmpdir(), "glinfer-webkit-"));
  const port = await freePort();
  const environment = { DISPLAY: screen.display, HOME: home, XDG_RUNTIME_DIR: home, GDK_BACKEND: "x11" };
  const driver = start(executable, [`--port=${port}`], environment);
  const connection = new Connection(`http://127.0.0.1:${port}`);
  let session = null;
  const close = async () => {
    if (session) await connection.send("DELETE", `/session/${session}`).catch(() => {}); // it may have ended by itself
    driver.started.kill();
    await driver.ended;
    await screen.close();
    rmSync(home, { recursive: true, force: true });
  };
  try {
    await connection.ready(driver.ended);
    const made = await connection.send("POST", "/session", { capabilities: { alwaysMatch: { timeouts: { script: LONGEST } } } });
    session = made.sessionId;
    return { newPage: async () => new Page(connection, session), close };
  } catch (error) {
    await close();
    throw error;
  }
}
