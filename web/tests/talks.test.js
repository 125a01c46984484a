/** Conversations that outgrow the context: the page leaves out the turns that Python's chat_session leaves out. */

import assert from "node:assert/strict";
import test from "node:test";

import { Conversation, GabForm } from "../glinfer/chat.js";
import { loadThrough } from "../glinfer/host.js";
import { Model } from "../glinfer/model.js";
import { Tokenizer } from "../glinfer/tokenizer.js";
import { LocalEngine } from "../page/local.js";
import { noPython, written } from "./python.js";
import { laidOut } from "./runtime.js";

const END = 2;
const nextToken = (ids) => (ids.length % 37 === 0 ? END : ((5 * ids.at(-1) + 3) % 41) + 40); // as in talks_in_python.py

/** What drives the model of that rule; it chooses as many tokens as it is asked for, or as were guessed. */
class Rule {
  drafted = { most: 16 };

  constructor(context) {
    this.context = context;
  }

  forget() {}

  expectDrafts() {}

  *catchUp() {
    yield;
  }

  chooses() {
    return true;
  }

  choose(ids, most) {
    const all = [...ids];
    while (all.length < ids.length + most) all.push(nextToken(all));
    return all.slice(ids.length);
  }

  accept(ids, draft) {
    const chosen = [];
    for (const guess of [...draft, null]) {
      chosen.push(nextToken([...ids, ...chosen]));
      if (chosen.at(-1) !== guess) break;
    }
    return chosen;
  }
}

function modelOf(context, vocabulary, texts = { tokenizer: null, form: null, why: "" }) {
  const generation = { temperature: 0, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1 };
  const model = { config: { max_position_embeddings: context, vocab_size: vocabulary }, stop_ids: [], generation, draws_per_token: 1 };
  const plan = { driver: "fast", companions: {}, textures: [], draws: [], head_draws: 2, model, pictures: [] };
  const replay = { plan, textures: [], drawsIssued: 0, finished: async () => {}, gl: { isContextLost: () => false } };
  const tables = new Map([["logits_order", new Int32Array(vocabulary)], ["line_checksums", new Uint32Array(0)]]);
  const made = new Model(replay, tables, texts);
  made.driver = new Rule(context);
  made.runTimes = { of: () => 1000, note: () => {} }; // every run takes as long, so that guesses pay
  return made;
}

/** An engine of the page over that model, which notes what the model is to hold. */
function engineOf(model) {
  globalThis.OffscreenCanvas ??= /** @type {any} */ (class {}); // nothing is drawn
  const engine = new LocalEngine();
  const prompts = [];
  const hold = model.hold.bind(model);
  model.hold = (ids) => (prompts.push(ids), hold(ids));
  Object.assign(engine, { model, conversation: new Conversation(model.tokenizer, model.form, model.context), encoded: new Map() });
  return { engine, prompts };
}

test("prompts and replies are Python's, guessed ahead and not", { skip: noPython }, async () => {
  const made = written("talks_in_python.py");
  const runtime = laidOut();
  const { LibraryTokenizer } = await runtime("text/library.js");
  const { TemplateForm } = await runtime("text/template.js");
  const tokenizer = new LibraryTokenizer(made.tokenizer);
  const form = new TemplateForm(tokenizer, made.chat);
  let leftOut = 0;
  for (const [context, said] of Object.entries(made.talks)) {
    for (const speculate of [null, "ngram"]) {
      const model = modelOf(Number(context), made.vocabulary, { tokenizer, form, why: "" });
      const { engine, prompts } = engineOf(model);
      let [turns, left] = [[], 0]; // as the page has them
      for (const { say, again, edit, tokens, prompt, text } of said) {
        const place = again ? turns.length - 1 : (edit ?? turns.length);
        if (edit !== undefined) left = 0;
        turns = [...turns.slice(0, place), { message: again ? turns[place].message : say, answer: "" }];
        const how = { signal: new AbortController().signal };
        for await (const piece of engine.write(turns.slice(left), { count: tokens, system: made.system, speculate }, how)) {
          left += piece.left ?? 0;
          if (piece.kind === "answer") turns.at(-1).answer += piece.text;
        }
        assert.deepEqual(prompts.at(-1), prompt);
        assert.equal(turns.at(-1).answer, text);
      }
      leftOut += left;
      assert.equal(model.accepted > 0, speculate !== null);
      assert.equal(model.dropped, 0);
    }
  }
  assert.ok(leftOut > 4);
});

/** Says one reply to one prompt. */
class Script extends Rule {
  choose(ids, most) {
    const made = ids.length - this.prompt.length;
    return this.reply.slice(made, made + most);
  }
}

test("thoughts between marks come apart from the answer as in Python", { skip: noPython }, async () => {
  const runtime = laidOut();
  const { LibraryTokenizer } = await runtime("text/library.js");
  const { TemplateForm } = await runtime("text/template.js");
  for (const { tokenizer: data, vocabulary, cases } of written("talks_in_python.py").thoughts) {
    const tokenizer = new LibraryTokenizer(data);
    for (const { chat, prompt, reply, thinking, text } of cases) {
      const form = new TemplateForm(tokenizer, chat);
      const model = modelOf(400, vocabulary, { tokenizer, form, why: "" });
      model.driver = Object.assign(new Script(400), { prompt, reply });
      const found = await model.chat("hi<think>");
      const expected = { ids: prompt, thinking, text, written: reply };
      assert.deepEqual({ ids: model.ids.slice(0, prompt.length), thinking: found.thinking, text: found.text, written: found.ids }, expected);
      const conversation = new Conversation(tokenizer, form, 400);
      conversation.prompt("hi<think>");
      conversation.addReply(reply);
      assert.equal(tokenizer.decode(conversation.turns[0].reply), text);
    }
  }
});

test("full contexts keep and drop what Python's do", { skip: noPython }, async () => {
  const { full, vocabulary } = written("talks_in_python.py");
  assert.ok(full.length > 20);
  for (const { context, prompt, before, keep, ids, held, dropped } of full) {
    const model = modelOf(context, vocabulary);
    model.before = before;
    const found = [];
    for await (const id of model.stream(prompt, { maxTokens: 60, keep })) found.push(id);
    assert.deepEqual({ found, held: model.ids, dropped: model.dropped }, { found: ids, held, dropped });
  }
});

test("what cannot be kept is refused, and a prompt beyond the context, as in Python", async () => {
  const longer = Array.from({ length: 65 }, () => 50);
  await assert.rejects(async () => void (await modelOf(64, 100).stream(longer).next()), /^GlinferError: the prompt has 65 tokens; this model's context holds 64; shorten it$/);
  assert.equal((await modelOf(65, 100).stream(longer).next()).done, false);
  for (const [keep, says] of [[64, /keep is 64 tokens; the context holds 64/], [-2, /keep is -2; expected/], [1.5, /keep is 1.5; expected/]]) {
    await assert.rejects(async () => void (await modelOf(64, 100).stream([50], { keep }).next()), says);
  }
});

const NO_SIGNAL = new AbortController().signal;

test("a text that goes on over a full context, and one that was cut back, are the same guessed ahead", async () => {
  for (const prompt of [[50], [40, 41, 42, 40, 41, 42], Array.from({ length: 60 }, (_, place) => 40 + (place % 9))]) {
    const found = [];
    for (const speculate of ["ngram", null]) {
      const model = modelOf(64, 100);
      const ids = [];
      for await (const id of model.stream(prompt, { maxTokens: 150, speculate, signal: NO_SIGNAL })) ids.push(id);
      model.rewind(20);
      const more = [];
      for await (const id of model.stream([...model.ids], { maxTokens: 30, speculate, stopIds: [END] })) more.push(id);
      assert.equal(model.accepted > 0, speculate !== null);
      found.push({ ids, more, held: [...model.ids], dropped: model.dropped });
    }
    assert.deepEqual(found[0], found[1]);
    assert.equal(found[0].ids.length, 150);
    assert.ok(found[0].dropped > 0);
  }
});

test("guesses of one's own are checked, and refused where they cannot be", () => {
  const model = modelOf(64, 100);
  assert.throws(() => model.accept([50], null), /has no tokens/);
  model.prefill([50]);
  const right = model.driver.choose([50], 5);
  assert.deepEqual(model.accept([...right.slice(0, 3), 99, 98], null), right.slice(0, 4));
  assert.deepEqual([model.drafted, model.accepted, model.ids.length], [5, 3, 5]);
  assert.throws(() => model.accept([100], null), /found the token 100/);
  const whole = modelOf(8, 100);
  whole.prefill([1, 2, 3, 4, 5, 6]);
  assert.equal(whole.accept(whole.driver.choose(whole.ids, 9), null).length, 3); // no more than there is room for
  model.driver.drafted = null;
  assert.throws(() => model.accept([1], null), /this site has no plan for drafts/);
});

test("what a lost context makes of a text is reported as that", async () => {
  const model = modelOf(64, 100);
  const broken = new Error("the model's output is broken");
  model.driver.choose = () => {
    throw broken;
  };
  await assert.rejects(model.stream([50]).next(), broken);
  model.driver.choose = () => {
    setTimeout(() => (model.replay.gl.isContextLost = () => true)); // the browser says so later
    throw broken;
  };
  await assert.rejects(model.stream([50]).next(), { name: "GlinferError", message: /^The browser dropped the graphics context/ });
});

test("a text says how it is guessed, or the model does, in one of the ways that there are", async () => {
  const take = async (model, options) => {
    for await (const id of model.stream([40, 41, 42, 40, 41, 42], { maxTokens: 60, ...options })) assert.ok(id >= 0);
    return model.accepted > 0;
  };
  const always = () => Object.assign(modelOf(256, 100), { speculate: "ngram" });
  assert.deepEqual([await take(always(), {}), await take(always(), { speculate: null })], [true, false]);
  await assert.rejects(() => take(modelOf(256, 100), { speculate: "guess" }), /speculate is "guess"; expected "ngram", or null/);
  const none = modelOf(256, 100);
  none.driver.drafted = null;
  assert.equal(await take(none, {}), false);
  await assert.rejects(() => take(none, { speculate: "ngram" }), /has no plan for drafts/);
});

test("calls refuse values of wrong types in one sentence, and null and undefined options are defaults", async () => {
  const pieces = Array.from({ length: 256 }, (_, byte) => Buffer.from([byte]).toString("base64"));
  const tokenizer = new Tokenizer({ kind: "bpe1", merges: [], pieces, control: {} });
  const form = new GabForm(tokenizer, { user: 1, assistant: 3, end: END, think: null });
  const own = modelOf(64, 256, { tokenizer, form, why: "" });
  Object.assign(own.plan.model.generation, { temperature: 0.5 });
  const load = (base, options) => loadThrough(base, { load: async () => own, start: null }, options);
  const here = { worker: false };
  const model = await load("http://localhost/", here);
  const first = (...given) => model.stream(...given).next();
  const wrong = [
    [() => load(undefined, here), "undefined is not the address of a folder"],
    [() => load("http://localhost/", 5), "the options are 5; expected an object"],
    [() => load("http://localhost/", []), "the options are an array; expected an object"],
    [() => load("http://localhost/", { worker: "no" }), 'worker is "no"; expected true or false'],
    [() => load("http://localhost/", { worker: false, cache: null }), "cache is null; expected true or false"],
    [() => first(null), "the text is null; expected a string"],
    [() => first("a", "b"), 'the options are "b"; expected an object'],
    [() => first("a", { signal: {} }), "signal is an object; expected that of an AbortController"],
    [() => first("a", { speculate: 1n }), "speculate is 1; expected"],
    [() => model.chat(null), "messages is null; expected"],
    [() => model.chat(() => {}), "messages is a function; expected"],
    [() => model.chat([null]), "message 0 has the content undefined; expected a string"],
    [() => model.chat([{ role: 1n, content: "a" }]), "message 0 has the role 1; expected"],
    [() => model.chat("a", 5), "the options are 5; expected an object"],
    [() => model.streamChat("a", 5).next(), "the options are 5; expected an object"],
    [() => model.encode(null), "the text is null; expected a string"],
    [() => model.encode("a", { allowSpecial: 1 }), "allowSpecial is 1; expected true or false"],
    [() => model.decode(null), "found null; expected an array of token ids"],
    [() => model.prefill(null), "found null; expected an array of token ids"],
    [() => model.step(null), "found the token null; expected"],
    [() => model.rewind(null), "cannot rewind by null tokens"],
    [() => model.verifyTextures(5), "the options are 5; expected an object"],
    [() => model.verifyTextures({ part: 1 }), "unknown option part; known: share"],
    [() => model.embed(null), "this model continues texts, and has no embed"],
  ];
  for (const [call, words] of wrong) {
    await assert.rejects(async () => void (await call()), ({ name, message }) => name === "GlinferError" && message.startsWith(words), words);
  }
  const samplers = [];
  own.driver.choose = (ids, most, sampler) => (samplers.push(sampler), [40]);
  for (const options of [null, undefined, { temperature: undefined, maxTokens: undefined }]) {
    for await (const piece of model.stream("a", options)) if (piece === "(") break;
    assert.equal((await model.chat("a", options)).finishReason, "context");
  }
  assert.deepEqual(new Set(samplers.map(({ temperature }) => temperature)), new Set([0.5]));
  assert.deepEqual(await model.encode("a", null), [97]);
});
