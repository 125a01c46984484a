import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";

import { GlinferError } from "../glinfer/errors.js";
import { INTEGER_TARGETS, rewritten } from "../glinfer/integer_targets.js";
import { assemble, collectShaders, explain } from "../glinfer/program.js";
import { noPython, python } from "./python.js";

const FILES = new Map([
  ["a.frag", '#version 300 es\n// text\n#include "common/one.glsl"\n  #include "common/two.glsl"\nvoid main() {}\n'],
  ["common/one.glsl", '#include "common/two.glsl"\nfloat one;\n'],
  ["common/two.glsl", "float two;\n"],
  ["bad.frag", "void main() {}\n"],
  ["lost.frag", '#version 300 es\n#include "common/none.glsl"\n'],
]);

test("defines come sorted behind the version line, and each include once", () => {
  const { text, origin } = assemble("a.frag", { B: 2, A: "1.0" }, FILES);
  const lines = ["#version 300 es", "#define A 1.0", "#define B 2", "// text", "float two;", "float one;", "void main() {}"];
  assert.equal(text, `${lines.join("\n")}\n`);
  assert.deepEqual(origin[4], ["common/two.glsl", 1]);
  assert.deepEqual(origin[6], ["a.frag", 5]);
  assert.equal(origin.length, lines.length);
});

test("a missing include and a missing version line are named", () => {
  assert.throws(() => assemble("lost.frag", {}, FILES), { message: /^lost\.frag:2: there is no shader file common\/none/ });
  assert.throws(() => assemble("bad.frag", {}, FILES), GlinferError);
});

test("includes of includes are loaded, each once", async () => {
  const asked = [];
  const read = async (name) => (asked.push(name), FILES.get(name));
  const files = await collectShaders(["a.frag", "a.frag"], read);
  assert.deepEqual(asked.sort(), ["a.frag", "common/one.glsl", "common/two.glsl"]);
  assert.equal(assemble("a.frag", {}, files).text, assemble("a.frag", {}, FILES).text);
});

test("an error names the file and the line that it came from, warnings do not come first", () => {
  const source = assemble("a.frag", { A: 1 }, FILES);
  const log = "WARNING: 0:1: beware\nERROR: 0:5: 'one' : syntax error\n\0";
  assert.equal(explain(log, source), "common/one.glsl:2: ERROR: 0:5: 'one' : syntax error");
  assert.equal(explain("no\n place", source), "no place");
});

test("every shader is assembled as in Python, to the last character", { skip: noPython }, () => {
  const folder = new URL("../../shaders/", import.meta.url);
  const names = readdirSync(folder, { recursive: true }).filter((name) => /\.(frag|vert|glsl)$/.test(name));
  const files = new Map(names.map((name) => [name, readFileSync(new URL(name, folder), "utf-8")]));
  const whole = names.filter((name) => !name.endsWith(".glsl") && name !== "own.frag"); // which includes what a caller gives
  const shaders = whole.sort();
  assert.ok(shaders.length > 40);
  const program = `
import json, sys
from glinfer.gl.program import integer_form, load_source
formats = {"halves": ["cache", "weight", "taps", "x0"], "targets": ["rgba32f", "rgba16f", "rgba8i", "r32f"]}
sources = [load_source(name, {"B": 3, "A": 0.25}, api="es") for name in sys.argv[1:]]
integers = [integer_form(source, **formats) for source in sources]
print(json.dumps([formats, [source.text for source in sources], [[each.text, each.origin] for each in integers]]))`;
  const [formats, floats, integers] = python(program, ...shaders);
  shaders.forEach((name, index) => {
    const source = assemble(name, { B: 3, A: "0.25" }, files);
    assert.equal(source.text, floats[index], name);
    const { text, origin } = rewritten(source, formats, files.get(INTEGER_TARGETS));
    assert.deepEqual([text, origin], integers[index], name);
  });
});
