/** The npm package, installed from its archive: what it has, that it can be imported, and its types. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import process from "node:process";
import test, { after, before, describe } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const WEB = fileURLToPath(new URL("../", import.meta.url));
const TSC = path.join(WEB, "node_modules/typescript/bin/tsc");
const skip = existsSync(TSC) ? false : "TypeScript is not in web/node_modules; 'make test-web' installs it";

function run(cwd, command, ...given) {
  const { status, stdout, stderr } = spawnSync(command, given, { cwd, encoding: "utf8" });
  return { status, said: `${stdout}${stderr}` };
}

/** Everything that a script does with the package. */
const USES = `
import { forget, GlinferError, load, type RemoteModel } from "glinfer";

export async function use(log: (text: string) => void): Promise<number> {
  const stop = new AbortController();
  const model: RemoteModel = await load("site/", {
    cache: false,
    worker: true,
    onLost: () => stop.abort(),
    onProgress: ({ part, done, all }) => log(part + done / all),
  });
  for await (const piece of model.stream("Once", { maxTokens: 5, topK: 40, seed: 1n, signal: stop.signal })) log(piece.trim());
  for await (const id of model.streamIds([1, 2])) log(id.toFixed());
  for await (const piece of model.streamChat([{ role: "user", content: "Hi" }])) log(piece.trim());
  const reply = await model.chat("Hi", { temperature: 0 });
  log(reply.text + reply.finishReason + reply.ids.length);
  const [vector] = await model.embed(["a cat"], { promptName: "query", dimensions: 8, normalize: true });
  const [best] = await model.rerank("purrs?", ["a dog", "a cat"], { onProgress: (done, all) => log(String(done / all)) });
  const logits: Float32Array = await model.logits();
  const report = await model.verifyTextures({ share: 0.1 });
  if (!report.ok) throw new GlinferError(report.different[0]?.name ?? "");
  log(await model.decode(await model.encode("a", { allowSpecial: false })));
  log(String(model.plan.model.name) + model.context + model.form?.takesSystem);
  await model.release();
  await forget("site/");
  return (vector?.[0] ?? 0) + (best?.score ?? 0) + logits.length;
}
`;
const WRONG = {
  "model.stream(1)": "is not assignable to parameter of type 'string'",
  'model.chat("a", { maxTokens: "5" })': "Type 'string' is not assignable to type 'number'",
  "model.sing()": "Property 'sing' does not exist",
  "model.form.takesSystem": "'model.form' is possibly 'null'",
};

describe("the package", { skip }, () => {
  let folder;
  let installed;
  before(() => {
    folder = mkdtempSync(path.join(tmpdir(), "glinfer-npm-"));
    const made = path.join(folder, "made");
    const { status, said } = run(WEB, process.execPath, "tools/package.mjs", made);
    assert.equal(status, 0, said);
    const quiet = ["--offline", "--ignore-scripts", "--loglevel=error", "--json"];
    const packed = run(made, "npm", "pack", ...quiet, "--pack-destination", folder);
    assert.equal(packed.status, 0, packed.said);
    const [archive] = JSON.parse(packed.said);
    const user = path.join(folder, "user");
    installed = path.join(user, "node_modules/glinfer");
    mkdirSync(installed, { recursive: true });
    writeFileSync(path.join(user, "package.json"), '{"name": "user", "private": true, "type": "module"}');
    run(folder, "tar", "-xzf", archive.filename, "--strip-components=1", "-C", installed);
  });
  after(() => folder && rmSync(folder, { recursive: true }));

  test("has the runtime, types, licences and nothing else", () => {
    const about = JSON.parse(readFileSync(path.join(installed, "package.json"), "utf8"));
    assert.equal(about.dependencies, undefined);
    const names = readdirSync(installed, { recursive: true }).filter((name) => /\.\w+$|LICENSE$/.test(name)).sort();
    for (const name of ["README.md", "LICENSE", "index.js", "index.d.ts", "worker.js", "libraries/LICENSE", "libraries/LICENSE.jinja"]) {
      assert.ok(names.includes(name), name);
    }
    const odd = names.filter((name) => !/^(README\.md|package\.json|(libraries\/)?LICENSE(\.jinja)?|.*\.(js|d\.ts))$/.test(name));
    assert.deepEqual(odd, []);
    for (const name of names.filter((each) => each.endsWith(".js"))) {
      assert.ok(names.includes(name.replace(/\.js$/, ".d.ts")), `types of ${name}`);
    }
  });

  test("replaces no folder of another kind", () => {
    const mine = path.join(folder, "mine");
    mkdirSync(mine);
    writeFileSync(path.join(mine, "work.txt"), "work");
    for (const argument of [mine, "--help"]) {
      const { status, said } = run(WEB, process.execPath, "tools/package.mjs", argument);
      assert.deepEqual([status, said], [1, `found ${argument}; expected a new folder, an earlier package, or --check\n`]);
    }
    assert.deepEqual(readdirSync(mine), ["work.txt"]);
  });

  test("can be imported where there is no browser, and says then what it needs", async () => {
    const { load, forget, GlinferError } = await import(pathToFileURL(path.join(installed, "index.js")));
    const wanted = { name: "GlinferError", message: "there is no WebGL2 here; load the model in a browser page" };
    await assert.rejects(load("http://localhost/site/"), wanted);
    await assert.rejects(load("http://localhost/site/", { worker: false }), (error) => error instanceof GlinferError);
    await forget("http://localhost/site/");
  });

  test("has types that a strict compiler takes, and that find mistakes", () => {
    const user = path.join(folder, "user");
    const lines = Object.keys(WRONG).map((line) => `await ${line};`);
    writeFileSync(path.join(user, "use.ts"), USES);
    writeFileSync(path.join(user, "wrong.ts"), `import { load } from "glinfer";\nconst model = await load("a");\n${lines.join("\n")}\n`);
    const options = ["--strict", "--noUncheckedIndexedAccess", "--noEmit", "--target", "es2023", "--lib", "es2023,dom,dom.iterable,dom.asynciterable"];
    const { said } = run(user, process.execPath, TSC, ...options, "--module", "nodenext", "--moduleResolution", "nodenext", "use.ts", "wrong.ts");
    const found = said.trim().split("\n").filter((line) => !line.startsWith(" "));
    assert.equal(found.length, lines.length, said);
    Object.values(WRONG).forEach((message, place) => {
      assert.ok(found[place].startsWith(`wrong.ts(${place + 3},`) && found[place].includes(message), said);
    });
  });
});
