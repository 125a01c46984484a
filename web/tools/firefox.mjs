// Firefox as its makers build it, by WebDriver BiDi, with the methods of Playwright's browsers and pages that drive.mjs needs for
// jobs; Playwright itself drives only builds of its own. Without a display Firefox has no WebGL, so it gets one of Xvfb.
// Node.js 20 has WebSocket with --experimental-websocket.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

import { start, startScreen } from "./screen.mjs";

/** Answers to commands by their numbers, and events by their names. */
class Connection {
  constructor(socket) {
    Object.assign(this, { socket, waiting: new Map(), listeners: new Map(), last: 0 });
    socket.addEventListener("message", ({ data }) => this.receive(JSON.parse(data)));
    socket.addEventListener("close", () => this.waiting.forEach(({ reject }) => reject(new Error("Firefox is gone"))));
  }

  static async to(address) {
    const socket = new WebSocket(address);
    await new Promise((resolve, reject) => {
      socket.addEventListener("open", resolve);
      socket.addEventListener("error", () => reject(new Error(`nothing answers at ${address}`)));
    });
    return new Connection(socket);
  }

  receive({ id, type, method, params, result, error, message }) {
    if (type === "event") return this.listeners.get(method)?.(params);
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    return type === "error" ? reject(new Error(`${error}: ${message}`)) : resolve(result);
  }

  send(method, params = {}) {
    const id = (this.last += 1);
    this.socket.send(JSON.stringify({ id, method, params }));
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }
}

/** One tab. Arguments and results of functions pass as JSON. */
class Page {
  constructor(connection, context) {
    Object.assign(this, { connection, context });
  }

  setDefaultTimeout() {} // commands wait as long as they take

  /** "console", with a message as Playwright has it, and "pageerror"; other events never come. */
  on(name, listener) {
    const { listeners } = this.connection;
    const before = listeners.get("log.entryAdded");
    listeners.set("log.entryAdded", (entry) => {
      before?.(entry);
      const thrown = entry.type === "javascript";
      if (thrown && name === "pageerror") listener(entry.text);
      if (thrown || name !== "console") return;
      const url = entry.stackTrace?.callFrames[0]?.url ?? "";
      const type = entry.level === "warn" ? "warning" : entry.level;
      listener({ type: () => type, text: () => entry.text, location: () => ({ url }) });
    });
  }

  addInitScript(script) {
    return this.connection.send("script.addPreloadScript", { functionDeclaration: String(script) });
  }

  goto(url) {
    return this.connection.send("browsingContext.navigate", { context: this.context, url, wait: "complete" });
  }

  async evaluate(script, given) {
    const { result, exceptionDetails } = await this.connection.send("script.callFunction", {
      functionDeclaration: `async (given) => JSON.stringify((await (${script})(JSON.parse(given))) ?? null)`,
      arguments: [{ type: "string", value: JSON.stringify(given ?? null) }],
      target: { context: this.context },
      awaitPromise: true,
    });
    if (exceptionDetails) throw new Error(exceptionDetails.text);
    return JSON.parse(result.value);
  }
}

/** Starts Firefox with a new profile, which is removed when the browser closes. */
export async function launchFirefox(executable) {
  const screen = await startScreen();
  const profile = mkdtempSync(path.join(tmpdir(), "glinfer-firefox-"));
  const environment = { DISPLAY: screen.display, HOME: profile, MOZ_ENABLE_WAYLAND: "0" };
  const options = ["--no-remote", "--profile", profile, "--remote-debugging-port", "0"];
  const firefox = start(executable, options, environment, { pipe: 2, pattern: /WebDriver BiDi listening on (\S+)/ });
  const close = async () => {
    firefox.started.kill();
    await firefox.ended;
    await screen.close();
    rmSync(profile, { recursive: true, force: true });
  };
  try {
    const connection = await Connection.to(`${await firefox.told}/session`);
    await connection.send("session.new", { capabilities: {} });
    await connection.send("session.subscribe", { events: ["log.entryAdded"] });
    const newPage = async () => new Page(connection, (await connection.send("browsingContext.create", { type: "tab" })).context);
    return { newPage, close };
  } catch (error) {
    await close();
    throw error;
  }
}
