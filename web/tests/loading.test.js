import assert from "node:assert/strict";
import test from "node:test";

import { crc32 } from "../glinfer/checksum.js";
import { GlinferError } from "../glinfer/errors.js";
import { parsePlan, progressInWords, uploadWeights } from "../glinfer/loading.js";
import { beginAll } from "../glinfer/program.js";
import { Replay } from "../glinfer/replay.js";

const WIDTH = 512;
const HEIGHT = 1500; // lines of 8 KB, of which a band has 512

/** A weights' file as an export writes it, and its entry of plan.json. */
function weightsFile(name, tensors) {
  const header = {};
  let end = 0;
  for (const [tensor, { dtype, shape, data }] of Object.entries(tensors)) {
    header[tensor] = { dtype, shape, data_offsets: [end, (end += data.byteLength)] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(text.length));
  const bytes = Buffer.concat([prefix, text, ...Object.values(tensors).map(({ data }) => Buffer.from(data.buffer))]);
  const sums = tensors.line_checksums?.data.buffer ?? new ArrayBuffer(0);
  return { bytes, entry: { name, bytes: bytes.length, crc32: crc32(new Uint8Array(sums), crc32(text)) } };
}

const TEXELS = Float32Array.from({ length: WIDTH * HEIGHT * 4 }, (_, index) => index % 65521);
const HALVES = Uint16Array.of(1, 2, 3, 4);
const big = { dtype: "F32", shape: [HEIGHT, WIDTH, 4], data: TEXELS };
const small = { dtype: "F16", shape: [1, 1, 4], data: HALVES };
const table = (Type, dtype, ...numbers) => ({ dtype, shape: [numbers.length], data: Type.from(numbers) });

function files() {
  return [
    weightsFile("one", { big, line_checksums: table(Uint32Array, "U32", 1, 2) }),
    weightsFile("two", { small, logits_order: table(Int32Array, "I32", 7, 8), line_checksums: table(Uint32Array, "U32", 3) }),
  ];
}

/** Uploads them into textures that only keep what they are given. */
async function upload(found, { has = ["big", "small"] } = {}) {
  const kept = { big: new Float32Array(TEXELS.length), small: new Uint16Array(4) };
  const sizes = [];
  const textureOf = (name) => {
    const { dtype, shape: [height, width] } = { big, small }[name];
    const Type = dtype === "F32" ? Float32Array : Uint16Array;
    const put = (texels, y) => (sizes.push(texels.byteLength), kept[name].set(texels, y * width * 4));
    return { spec: { name, tensor: name, kind: "weight", width, height }, Array: Type, channels: 4, upload: put };
  };
  const replay = { gl: { flush() {} }, textures: has.map(textureOf), check: () => {} };
  const parts = async function* (name, length) {
    const { bytes } = found.find(({ entry }) => entry.name === name);
    for (let at = 0; at < length; at += 100_003) yield new Uint8Array(bytes.subarray(at, Math.min(length, at + 100_003)));
  };
  const told = [];
  const plan = { files: { weights: found.map(({ entry }) => entry) } };
  const tables = await uploadWeights(Promise.resolve(replay), plan, { parts }, (progress) => told.push(progress));
  return { kept, sizes, tables, told };
}

test("weights of several files go into their textures in bands, and their tables are joined", async () => {
  const found = files();
  const { kept, sizes, tables, told } = await upload(found);
  assert.deepEqual(kept.big, TEXELS);
  assert.deepEqual(kept.small, HALVES);
  assert.deepEqual(sizes, [4 << 20, 4 << 20, TEXELS.byteLength - (8 << 20), 8]);
  assert.deepEqual(tables.get("line_checksums"), Uint32Array.of(1, 2, 3));
  assert.deepEqual(tables.get("logits_order"), Int32Array.of(7, 8));
  const all = found[0].bytes.length + found[1].bytes.length;
  assert.ok(told.every((each, index) => each.part === "weights" && each.all === all && each.done >= (told[index - 1]?.done ?? 0)));
  assert.equal(told.at(-1).done, all);
});

const damaged = (change) => {
  const found = files();
  change(found);
  return found;
};
const REFUSED = {
  "a file of another export": [damaged(([, { entry }]) => (entry.crc32 ^= 1)), {}, /two cannot be read: it is not the file that plan\.json/],
  "other checksums": [damaged(([, { bytes }]) => (bytes[bytes.length - 1] ^= 1)), {}, /two cannot be read: it is not the file that plan\.json/],
  "a file that is cut short": [damaged(([{ entry }]) => (entry.bytes -= 9)), {}, /one cannot be read: it ends after \d+ bytes/],
  "a tensor of another shape": [
    [weightsFile("one", { big: small, line_checksums: table(Uint32Array, "U32", 1) })],
    { has: ["big"] },
    /tensor big has the shape 1×1×4 of F16; expected 512×1500 texels of 4/,
  ],
  "weights without a texture's": [files().slice(1), {}, /the weights have no tensor big/],
};
for (const [what, [found, options, message]] of Object.entries(REFUSED)) {
  test(`refuses ${what}`, () => assert.rejects(upload(found, options), (error) => error instanceof GlinferError && message.test(error.message)));
}

test("nothing is uploaded once the textures were released", async () => {
  const found = files();
  const uploads = [];
  const replay = { gl: { flush() {} }, textures: [], check: () => {} };
  const put = (texels) => (uploads.push(texels.length), (replay.textures = []));
  replay.textures = [{ spec: { name: "big", kind: "weight", width: WIDTH, height: HEIGHT }, Array: Float32Array, channels: 4, upload: put }];
  const parts = async function* () {
    yield new Uint8Array(found[0].bytes);
  };
  const plan = { files: { weights: [found[0].entry] } };
  await assert.rejects(uploadWeights(Promise.resolve(replay), plan, { parts }, () => {}), /released while it was loaded/);
  assert.deepEqual(uploads, [(4 << 20) / 4]);
});

test("plans of other versions, and without files, are refused", () => {
  const plan = { format: "glinfer-web", version: 5, files: { weights: [] } };
  assert.deepEqual(parsePlan(JSON.stringify(plan)), plan);
  assert.throws(() => parsePlan("<html>"), /plan.json is not JSON/);
  assert.throws(() => parsePlan(JSON.stringify({ ...plan, version: 4 })), /version 4; expected glinfer-web version 5; export the model again/);
  assert.throws(() => parsePlan(JSON.stringify({ ...plan, files: undefined })), /export the model again/);
});

/** A replay whose programs are done after so many questions each, and one of a companion, of which nobody asks; `told` is what happened, in order. */
function compiling(...questions) {
  const told = [];
  const programs = questions.map((left, index) => ({
    isDone: () => (told.push(`${index}?`), left-- === 0),
    finish: () => told.push(`${index} finished`),
  }));
  programs.push({ isDone: () => told.push("companion?"), finish: () => told.push("companion finished") });
  const replay = Object.assign(Object.create(Replay.prototype), {
    gl: { isContextLost: () => false }, programs, plan: { draws: questions.map((_, program) => ({ program })) },
  });
  const done = replay.compiled((count, all) => told.push(`${count} of ${all}`));
  return { replay, told, done };
}

test("programs are finished once the driver has them, and not before", async () => {
  const { told, done } = compiling(2, 0);
  assert.deepEqual(told, ["0 of 2", "0?"]); // nobody was waited for
  await done;
  assert.deepEqual(told, ["0 of 2", "0?", "0?", "0?", "0 finished", "1 of 2", "1?", "1 finished", "2 of 2"]);
});

test("nobody asks for programs that were released", async () => {
  const { replay, told, done } = compiling(Infinity);
  replay.programs = [];
  await done;
  assert.ok(told.length <= 3 && !told.includes("0 finished"));
});

test("all shaders are compiled before the first program is linked", () => {
  const calls = [];
  const gl = new Proxy({}, {
    get: (_, name) => (/^[A-Z]/.test(name) ? name : (...given) => (calls.push(name), name === "getExtension" ? { COMPLETION_STATUS_KHR: 7, given } : {})),
  });
  const files = new Map([["a.frag", "#version 300 es\n"], ["common/triangle.vert", "#version 300 es\n"]]);
  const spec = { fragment: "a.frag", vertex: "common/triangle.vert", defines: {}, samplers: [] };
  const [program] = beginAll(gl, [spec, spec], files);
  const order = calls.filter((name) => ["compileShader", "linkProgram"].includes(name));
  assert.deepEqual(order, [...Array(4).fill("compileShader"), "linkProgram", "linkProgram"]);
  const answers = { getProgramParameter: (_, name) => name !== 7, isContextLost: () => false };
  program.gl = answers;
  assert.equal(program.isDone(), false);
  program.gl = { ...answers, isContextLost: () => true };
  assert.equal(program.isDone(), true);
  program.parallel = null; // `finish` waits then
  assert.equal(program.isDone(), true);
});

test("words are of the first part that is not done", () => {
  const words = progressInWords();
  assert.equal(words({ part: "plan", done: 0, all: 1 }), "Loading the plan…");
  words({ part: "plan", done: 1, all: 1 });
  assert.equal(words({ part: "programs", done: 1, all: 9 }), "Loading the weights…");
  assert.equal(words({ part: "weights", done: 2e6, all: 3e6 }), "Loading the weights… 2 of 3 MB");
  assert.equal(words({ part: "programs", done: 2, all: 9 }), "Loading the weights… 2 of 3 MB");
  assert.equal(words({ part: "weights", done: 3e6, all: 3e6 }), "Compiling the shaders… 2 of 9");
});
