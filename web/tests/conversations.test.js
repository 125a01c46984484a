import assert from "node:assert/strict";
import test from "node:test";

import { Conversations } from "../page/conversations.js";
import { MemoryStore } from "../page/store.js";

/** The conversations of one tab. */
function tabOn(store, id = null) {
  const tab = { id, remembered: () => tab.id, remember: (given) => (tab.id = given) };
  return new Conversations(store, tab);
}

const turn = (message, answer = "") => ({ message, answer, thinking: "", model: "m" });

async function written(conversations, ...messages) {
  for (const message of messages) {
    conversations.begin();
    conversations.current.turns.push(turn(message, `${message}!`));
    await conversations.save();
  }
}

test("conversations are listed by their beginnings, the latest first", async (t) => {
  t.mock.timers.enable({ apis: ["Date"], now: 1000 });
  const tab = tabOn(new MemoryStore());
  await written(tab, "  one\n two ");
  t.mock.timers.tick(1);
  await written(tab, "é🚀".repeat(40));
  assert.deepEqual(tab.list.map(({ title }) => title), [`${"é🚀".repeat(29)}é…`, "one two"]);
  t.mock.timers.tick(1);
  await tab.open(tab.list[1].id);
  tab.current.turns.push(turn("three"));
  await tab.save();
  assert.deepEqual(tab.list.map(({ title, turns }) => [title.slice(0, 3), turns.length]), [["one", 2], ["é🚀é".slice(0, 3), 1]]);
});

test("one that nobody has begun is not kept", async () => {
  const tab = tabOn(new MemoryStore());
  await tab.start();
  tab.begin();
  assert.deepEqual([tab.list, await tab.store.all()], [[], []]);
});

test("a tab that is loaded again has its conversation", async () => {
  const store = new MemoryStore();
  const tab = tabOn(store);
  await written(tab, "a", "b");
  const again = tabOn(store, tab.tab.id);
  await again.start();
  assert.equal(again.current.turns[0].message, "b");
  await again.remove(again.current.id);
  assert.deepEqual([again.tab.id, again.current.turns, again.list.length], ["", [], 1]);
  const gone = tabOn(store, tab.tab.id);
  await gone.start();
  assert.deepEqual(gone.current.turns, []);
});

test("a title that was given stays, of the open one and of others", async () => {
  const tab = tabOn(new MemoryStore());
  await written(tab, "a", "b");
  const [{ id: open }, { id: other }] = [tab.current, tab.list.find(({ title }) => title === "a")];
  await tab.rename(open, " B ");
  await tab.rename(other, "A");
  tab.current.turns[0].message = "c";
  await tab.save();
  assert.deepEqual(tab.list.map(({ title }) => title).sort(), ["A", "B"]);
});

test("deleting all leaves nothing", async () => {
  const tab = tabOn(new MemoryStore());
  await written(tab, "a", "b");
  await tab.clear();
  assert.deepEqual([await tab.store.all(), tab.list, tab.current.turns, tab.current.revision], [[], [], [], 0]);
});

test("what two tabs write in one conversation is kept twice, and nothing is lost", async () => {
  const store = new MemoryStore();
  const [one, other] = [tabOn(store), tabOn(store)];
  await written(one, "a");
  await other.open(one.current.id);
  one.current.turns.push(turn("b"));
  other.current.turns.push(turn("c"));
  assert.equal(await one.save(), true);
  assert.equal(await other.save(), false);
  assert.notEqual(other.current.id, one.current.id);
  const kept = (await store.all()).map(({ turns }) => turns.map(({ message }) => message).join(""));
  assert.deepEqual(kept.sort(), ["ab", "ac"]);
  other.current.turns.push(turn("d"));
  assert.equal(await other.save(), true);
});

test("a tab does not overwrite a conversation that was deleted and restored elsewhere", async () => {
  const store = new MemoryStore();
  const [one, other] = [tabOn(store), tabOn(store)];
  await written(one, "a");
  const [old] = await store.all();
  one.current.turns.push(turn("b"));
  await one.save();
  await other.open(one.current.id);
  await store.remove(old.id);
  await store.put(old);
  other.current.turns.push(turn("c"));
  assert.equal(await other.save(), false);
  assert.deepEqual((await store.get(old.id)).turns.map(({ message }) => message), ["a"]);
});

test("a tab follows what another one did", async () => {
  const store = new MemoryStore();
  const [one, other] = [tabOn(store), tabOn(store)];
  await written(one, "a");
  await other.open(one.current.id);
  assert.equal(await other.follow(), "same");
  one.current.turns.push(turn("b"));
  await one.save();
  assert.equal(await other.follow(), "changed");
  assert.equal(other.current.turns.length, 2);
  await one.remove(one.current.id);
  assert.equal(await other.follow(), "deleted");
  assert.deepEqual([other.current.turns, other.current.revision], [[], 0]);
  assert.equal(await other.follow(), "same");
  await assert.rejects(other.open("none"), { name: "GlinferError", message: /deleted in another tab/ });
});

test("other tabs are told of every change", async () => {
  const tab = tabOn(new MemoryStore());
  let told = 0;
  tab.announce = () => (told += 1);
  await written(tab, "a");
  await tab.rename(tab.current.id, "b");
  await tab.remove(tab.current.id);
  await tab.clear();
  assert.equal(told, 4);
});

test("where there is no room the error is passed on, and the next save works", async () => {
  const tab = tabOn(new MemoryStore());
  tab.current.turns.push(turn("a"));
  const { put } = tab.store;
  tab.store.put = async () => {
    throw new DOMException("full", "QuotaExceededError");
  };
  await assert.rejects(tab.save(), { name: "QuotaExceededError" });
  tab.store.put = put;
  assert.equal(await tab.save(), true);
  assert.equal(tab.list.length, 1);
});
