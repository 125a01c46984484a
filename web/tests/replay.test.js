/** What a replay makes of a plan, and when; what becomes of it where memory runs out, and in a page that nobody sees. */

import assert from "node:assert/strict";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { Replay } from "../glinfer/replay.js";

const FILES = new Map(["a.frag", "b.frag", "common/triangle.vert"].map((name) => [name, "#version 300 es\n"]));
const program = (fragment) => ({ fragment, vertex: "common/triangle.vert", defines: {}, samplers: ["x"] });
const texture = (name) => ({ name, format: "rgba32f", width: 4, height: 4, layout: {} });
const draw = (number, input, output) => ({ name: `d${number}`, program: number, inputs: [input], outputs: [output], uniforms: {}, per_run: {}, viewport: [0, 0, 4, 4], vertices: 3, instances: 1, clears: [] });
const PLAN = {
  programs: [program("a.frag"), program("b.frag")],
  textures: ["in", "out", "more"].map(texture),
  draws: [draw(0, 0, 1)],
  companions: { rows: { draws: [] }, drafted: { on_demand: true, draws: [draw(1, 1, 2)] } },
};

/** A context that takes every call and notes it; `answers` are those of some of them. */
function context(answers = {}) {
  const calls = [];
  const given = { getError: "NO_ERROR", checkFramebufferStatus: "FRAMEBUFFER_COMPLETE", isContextLost: false, getExtension: null, ...answers };
  const answer = (name) => {
    const found = name in given ? given[name] : name === "getProgramParameter" ? 0 : {};
    return typeof found === "function" ? found() : found;
  };
  const fixed = { LINK_STATUS: true, ACTIVE_UNIFORMS: given.getActiveUniform ? 1 : 0 };
  const gl = new Proxy({}, {
    get: (_, name) => (/^[A-Z_0-9]+$/.test(name) ? name : (...values) => (calls.push([name, ...values]), (name === "getProgramParameter" && fixed[values[1]]) || answer(name))),
  });
  const count = (name) => calls.filter(([each]) => each === name).length;
  return { gl, count, calls };
}

test("programs and textures of a companion on demand are made when it is asked for, and once", () => {
  const { gl, count } = context();
  const replay = new Replay(gl, PLAN, FILES);
  replay.bindAll();
  const made = () => [count("linkProgram"), count("texStorage2D"), count("createFramebuffer")];
  assert.deepEqual(made(), [1, 2, 1]);
  replay.begin(PLAN.companions.drafted.draws);
  assert.deepEqual(made(), [2, 3, 1]);
  replay.begin(PLAN.companions.drafted.draws);
  const [bound] = replay.companion("drafted");
  assert.equal(replay.companion("drafted")[0], bound);
  assert.deepEqual(made(), [2, 3, 2]);
  replay.release();
  assert.deepEqual([count("deleteProgram"), count("deleteTexture"), count("deleteFramebuffer")], [2, 3, 2]);
  const other = context();
  new Replay(other.gl, PLAN, FILES).release(); // nobody has asked
  assert.deepEqual([other.count("createProgram"), other.count("deleteProgram")], [1, 1]);
});

test("warming up draws once with each program, into a texel that is zero again, and asks nothing behind it", () => {
  const made = (number, input, output) => ({ ...draw(number, input, output), per_run: { position: "at" } });
  const plan = {
    ...PLAN,
    run_values: [{ name: "at", smallest: 3, largest: 9, whole: true, value: null }],
    draws: [made(0, 0, 1), made(0, 0, 2)],
    companions: {
      rows: { run_values: [{ name: "at", smallest: 5, largest: 5, whole: true, value: null }], draws: [made(1, 1, 2)] },
      drafted: { on_demand: true, run_values: [], draws: [made(1, 1, 2)] },
    },
  };
  let compiled = false;
  const { gl, calls } = context({ getExtension: { COMPLETION_STATUS_KHR: "DONE" }, getProgramParameter: () => (compiled ? 1 : 0), getActiveUniform: { name: "position", type: "INT" } });
  const drawn = () => {
    const replay = new Replay(gl, plan, FILES);
    calls.length = 0;
    replay.warmUp();
    assert.equal(replay.drawsIssued, 0);
    return calls.filter(([name]) => /draw|scissor|clearBuffer|uniform1i|getError/.test(name) && name !== "drawBuffers").map(([name, ...given]) => [name, given.at(-1)]);
  };
  const one = (at) => [["scissor", 1], ["uniform1i", at], ["drawArraysInstanced", 1], ["scissor", 1], ["clearBufferfv", new Float32Array(4)]];
  const first = drawn();
  assert.deepEqual(first.slice(first.findLastIndex(([name]) => name === "getError") + 1), one(3), "the companion is not compiled yet");
  compiled = true;
  const both = drawn();
  assert.deepEqual(both.slice(both.findLastIndex(([name]) => name === "getError") + 1), [...one(3), ...one(5)]);
});

test("where graphics memory runs out, what was made is let go of, and one sentence says so", () => {
  const { gl, count } = context({ getError: "OUT_OF_MEMORY" });
  assert.throws(() => new Replay(gl, PLAN, FILES), new GlinferError("the graphics memory ran out while making the textures"));
  assert.deepEqual([count("deleteTexture"), count("deleteProgram")], [3, 1]);
  let error = "NO_ERROR";
  const later = context({ getError: () => error });
  const replay = new Replay(later.gl, PLAN, FILES);
  error = "OUT_OF_MEMORY";
  assert.throws(() => replay.companion("drafted"), new GlinferError("the graphics memory ran out while preparing the model"));
});

test("a context that is gone is told before anything is asked of it", () => {
  let gone = false;
  const { gl } = context({ isContextLost: () => gone });
  const replay = new Replay(gl, PLAN, FILES);
  gone = true;
  assert.throws(() => replay.begin(PLAN.companions.drafted.draws), /The browser dropped the graphics context/);
});

test("a page that nobody sees does not wait for timers, and one that is seen does", { timeout: 60_000 }, async () => {
  let [asked, timers] = [0, 0];
  const { gl } = context({ clientWaitSync: () => (asked++ < 3 ? "TIMEOUT_EXPIRED" : "CONDITION_SATISFIED") });
  const replay = new Replay(gl, PLAN, FILES);
  const { setTimeout } = globalThis;
  try {
    globalThis.setTimeout = /** @type {any} */ (() => (timers += 1)); // which never comes
    globalThis.document = /** @type {any} */ ({ hidden: true });
    await replay.finished();
    assert.deepEqual([asked, timers], [4, 0]);
    globalThis.setTimeout = /** @type {any} */ ((act) => (timers++, queueMicrotask(act)));
    globalThis.document = /** @type {any} */ ({ hidden: false });
    asked = 0;
    await replay.finished();
    assert.deepEqual([asked, timers], [4, 4]);
  } finally {
    globalThis.setTimeout = setTimeout;
    delete globalThis.document;
  }
});

test("each product is watched at first and then one of every fourth run, and one that writes nothing or zeros is named", () => {
  const spec = (number, input, output) => ({ ...draw(number, input, output), adds: false });
  const activations = PLAN.textures.map((each) => ({ ...each, kind: "activation" }));
  const programs = [program("linear.frag"), program("gemm.frag")];
  const files = new Map([...FILES, ...programs.map(({ fragment }) => [fragment, "#version 300 es\n"])]);
  const plan = { ...PLAN, programs, textures: activations, run_values: [], draws: [spec(0, 0, 1), spec(1, 1, 2), spec(1, 0, 2)], companions: {} };
  let bits = () => 1; // that are read back
  const { gl, calls } = context();
  const read = new Proxy(gl, { get: (own, name) => (name === "readPixels" ? (...given) => new Uint32Array(given.at(-1).buffer).fill(bits()) : own[name]) });
  const replay = new Replay(read, plan, files);
  replay.bindAll();
  const run = () => {
    calls.length = 0;
    replay.run({});
    replay.read(2, 4, 4);
    const names = calls.map(([name]) => name).filter((name) => /^(clearBufferfv|drawArraysInstanced)$/.test(name));
    return names.map((name) => (name === "clearBufferfv" ? "w" : "d")).join("");
  };
  const seen = Array.from({ length: 6 }, run);
  const spoiled = "ww"; // both activations, first
  assert.deepEqual(seen, ["wdwddwdwd", "ddd", "ddd", "wddd", "ddd", "ddd"].map((run) => spoiled + run));
  const unchanged = 0xf1a5c0de;
  /** @type {[number[], string][]} */
  const told = [[[unchanged, unchanged], "nothing"], [[1, 0, 0], "wrong numbers"]];
  for (const [texels, wrote] of told) {
    replay.watched.clear();
    bits = () => texels.shift();
    assert.throws(run, { message: `pass d0 wrote ${wrote}: the graphics driver dropped it without an error, perhaps because it took too long` });
  }
  bits = () => 0; // as of a draw alone, so it is no fault
  replay.watched.add(replay.draws[0]);
  assert.ok(Array.from({ length: 8 }, run).some((made) => made.endsWith("wdwd")));
  bits = () => (calls.filter(([name]) => name === "drawArraysInstanced").length === 4 ? 1 : 0);
  assert.throws(() => Array.from({ length: 5 }, run), { message: /^pass d\d wrote wrong numbers: / });
  bits = () => unchanged;
  assert.throws(() => Array.from({ length: 5 }, run), { message: /^pass d\d wrote nothing: / });
  assert.equal(replay.sentinels.size, 0);
});
