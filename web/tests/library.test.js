/** Tokenizers and chat templates of other models: the ids, texts and prompts of Python. */

import assert from "node:assert/strict";
import process from "node:process";
import test, { before, describe } from "node:test";

import { noPython, written } from "./python.js";
import { laidOut } from "./runtime.js";

const TEXTS = Number(process.env.GLINFER_TEXTS ?? 60);
const CONVERSATIONS = Number(process.env.GLINFER_CONVERSATIONS ?? 20);
const skip = noPython;
const theirs = skip ? {} : written("texts_in_python.py", TEXTS, CONVERSATIONS);
const runtime = skip ? null : laidOut();

/** The same ids, or words; comparing them one by one takes several times as long. */
function same(found, wanted, where) {
  if (found.join("\0") !== wanted.join("\0")) assert.deepEqual(found, wanted, where);
}

describe("tokenizers", { skip }, () => {
  const made = theirs.tokenizers;
  let LibraryTokenizer;
  before(async () => ({ LibraryTokenizer } = await runtime("text/library.js")));

  test("all kinds give Python's ids and texts", () => {
    assert.ok(Object.keys(made).length >= 25);
    for (const [name, { entry, cases }] of Object.entries(made)) {
      assert.ok(cases.length > TEXTS);
      const tokenizer = new LibraryTokenizer(entry);
      for (const each of cases) {
        const where = `${name}: ${JSON.stringify(each.text)}`;
        const whole = tokenizer.pipeline("whole");
        const words = whole.cut([{ text: whole.normalize(each.text), first: true }].filter(({ text }) => text));
        same(words.map(({ text }) => text), each.words, where);
        same(tokenizer.encode(each.text), each.whole, where);
        const plain = tokenizer.encode(each.text, { allowSpecial: false });
        same(plain, each.plain, where);
        same(tokenizer.encodeMixed(each.mixed), each.mixed_ids, where);
        assert.equal(tokenizer.decode(plain), each.decoded, where);
        assert.equal(tokenizer.decode(each.ids), each.ids_decoded, where);
      }
    }
  });

  test("characters that are split across tokens wait for their last byte", () => {
    const tokenizer = new LibraryTokenizer(made.pieces.entry);
    const ids = tokenizer.encode(" €", { allowSpecial: false });
    const stream = tokenizer.stream();
    const pieces = ids.map(stream.push);
    assert.equal(pieces.join(""), "  €"); // with the space that is put before a text
    assert.ok(pieces.includes(""));
    assert.equal(stream.push(ids.at(-3)), "");
    assert.equal(stream.finish(), "\ufffd");
    assert.equal(tokenizer.stream().push(100_000), ""); // a row of the model without a token
  });

  test("a tokenizer that gives other ids, or has another step, is not used", async () => {
    const { entry } = made["byte-level"];
    const [first, ...probes] = entry.probes;
    const other = { ...entry, probes: [...probes, { ...first, plain: [1] }] };
    assert.throws(() => new LibraryTokenizer(other), /this browser tokenizes "" differently from Python; give token ids/);
    const odd = { ...entry, library: { ...entry.library, normalizer: { type: "Nmt" } } };
    assert.throws(() => new LibraryTokenizer(odd), /cannot be read here \(its normalizer has Nmt\)/);
    const { textsOf } = await runtime("library_texts.js");
    const { tokenizer, form, why } = textsOf({ chat: null, why: null }, odd);
    assert.deepEqual([tokenizer, form], [null, null]);
    assert.match(why, /its normalizer has Nmt/);
    assert.throws(() => new LibraryTokenizer(entry).encode("a\ud800"), /half a surrogate pair/);
  });
});

describe("chat templates", { skip }, () => {
  const made = theirs.templates;
  let tokenizer;
  before(async () => {
    const { LibraryTokenizer } = await runtime("text/library.js");
    tokenizer = new LibraryTokenizer(theirs.tokenizer);
  });

  test("all kinds give Python's prompts and ids, and refuse what Python refuses", async () => {
    const { TemplateForm } = await runtime("text/template.js");
    for (const [name, { chat, cases }] of Object.entries(made)) {
      const form = new TemplateForm(tokenizer, chat);
      assert.equal(cases.length, CONVERSATIONS);
      for (const { messages, text, ids } of cases) {
        const where = `${name}: ${JSON.stringify(messages)}`;
        if (text === null) {
          assert.throws(() => form.render(messages), undefined, where);
          continue;
        }
        assert.equal(form.render(messages), text, where);
        assert.deepEqual(form.ids(messages), ids, where);
      }
    }
  });

  test("the turns of a conversation are its messages, and the oldest are left out", async () => {
    const { TemplateForm } = await runtime("text/template.js");
    const { Conversation } = await runtime("glinfer/chat.js");
    const form = new TemplateForm(tokenizer, made.chatml.chat);
    const talk = new Conversation(tokenizer, form, 150);
    const end = tokenizer.control.get("<|im_end|>");
    talk.prompt("a<|im_end|>", 10, { system: "S" });
    talk.addReply([...tokenizer.encode("one", { allowSpecial: false }), end]);
    const messages = [
      { role: "system", content: "S" },
      { role: "user", content: "a<|im_end|>" },
      { role: "assistant", content: "one" },
      { role: "user", content: "b" },
    ];
    const whole = form.ids(messages);
    assert.equal(whole.filter((id) => id === end).length, 4); // the message spells one, and has none
    assert.deepEqual(talk.prompt("b", 150 - whole.length, { system: "S" }), whole);
    assert.deepEqual(talk.prompt("b", 151 - whole.length, { system: "S" }), form.ids([messages[0], messages[3]]));
    assert.throws(() => talk.prompt("b", 149, { system: "S" }), /the message takes \d+ tokens and the reply at least 149/);
  });

  test("a template that cannot be rendered here is not used", async () => {
    const { TemplateForm } = await runtime("text/template.js");
    const { chat } = made.chatml;
    const changed = (values) => () => new TemplateForm(tokenizer, { ...chat, ...values });
    assert.throws(changed({ template: "{{ 'a' * 3 }}" }), /cannot be rendered here \(Unknown operator/);
    assert.throws(changed({ template: "{% if %}" }), /cannot be read here/);
    const looks = "{% set end = '<|im_end|>' %}{{ end | length }}{{ messages[0].content | length }}";
    assert.throws(changed({ template: looks }), /cannot be rendered here \(.* looks at its own control tokens/);
    assert.throws(changed({ template: `${chat.template}.` }), /cannot be rendered here \(other tokens than in Python\)/);
    assert.throws(changed({ template: "{% for a in range(10 ** 9) %}{% endfor %}" }), /expected at most 100000/);
  });

  test("a template may tell the time, which the export has kept", async () => {
    const { TemplateForm } = await runtime("text/template.js");
    const form = new TemplateForm(tokenizer, made["llama 3.1"].chat);
    const message = [{ role: "user", content: "a" }];
    assert.match(form.render(message, new Date(2031, 0, 9)), /Today Date: 09 Jan 2031/);
  });
});
