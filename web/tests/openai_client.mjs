// Asks every route of a running server that OpenAI's client has, with every option, and says what came as one JSON document.
//
//   node openai_client.mjs ADDRESS KEY
//
// The server has the models `shakespeare`, which continues texts, and `speaker`, which replies to "hi" with "héy".

import process from "node:process";
import OpenAI from "openai";

const [address, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: key, maxRetries: 0, timeout: 60_000 });
const HELLO = [{ role: "user", content: "hi" }];
const STYLE = {
  temperature: 0.8,
  top_p: 0.9,
  top_k: 30,
  min_p: 0.01,
  presence_penalty: 0.1,
  frequency_penalty: 0.1,
  repetition_penalty: 1.05,
  logit_bias: { 33: -100 },
  seed: 11,
  user: "me",
};
const COUNTED = { include_usage: true, continuous_usage_stats: true };
const found = {};

/** What the client says of a refusal. */
async function refusal(asked) {
  try {
    await asked;
    return null;
  } catch (error) {
    const { name, status, code, param, type } = error;
    return { name: error.constructor.name ?? name, status, code, param, type };
  }
}

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

found.models = (await client.models.list()).data.map(({ id }) => id);
found.model = (await client.models.retrieve("speaker")).id;

const chat = { model: "speaker", messages: HELLO };
found.chat = await client.chat.completions.create(chat);
found.chatChunks = await all(await client.chat.completions.create({ ...chat, stream: true, stream_options: COUNTED }));
found.chatStyled = await client.chat.completions.create({
  ...chat,
  ...STYLE,
  n: 2,
  max_completion_tokens: 4,
  stop: ["zz", "qq"],
  logprobs: true,
  top_logprobs: 3,
  response_format: { type: "text" },
  store: false,
  metadata: { a: "b" },
});
found.chatParts = await client.chat.completions.create({
  model: "speaker",
  messages: [{ role: "user", content: [{ type: "text", text: "hi" }] }],
  max_tokens: 9,
});
const runner = client.chat.completions.stream(chat); // the client's own gatherer of chunks
found.chatFinal = (await runner.finalChatCompletion()).choices[0].message.content;

const text = { model: "shakespeare", prompt: "ROMEO:", max_tokens: 12, ...STYLE };
found.text = await client.completions.create(text);
found.textAgain = await client.completions.create(text);
found.textChunks = await all(await client.completions.create({ ...text, stream: true, stream_options: COUNTED }));
found.textMany = await client.completions.create({ ...text, prompt: ["ROMEO:", "JULIET:"], n: 2, stop: "\n" });
found.textIds = await client.completions.create({ ...text, prompt: [82, 79, 77, 69, 79, 58], echo: true, logprobs: 1 });
found.textIdLists = await client.completions.create({ ...text, prompt: [[82, 79], [77]], max_tokens: 1 });
found.textScored = await client.completions.create({ model: "shakespeare", prompt: "ROMEO:", max_tokens: 0, echo: true, logprobs: 1 });

const ask = { model: "speaker", input: "hi" };
found.response = (await client.responses.create(ask)).output_text;
found.responseItems = (await client.responses.create({ model: "speaker", input: HELLO, max_output_tokens: 2, temperature: 0, top_p: 1 })).output_text;
found.responseEvents = (await all(await client.responses.create({ ...ask, stream: true }))).map(({ type }) => type);
found.responseFinal = (await client.responses.stream(ask).finalResponse()).output_text;

// What OpenAI's API has not, by the client's own requests.
found.tokens = (await client.post(`${address}/tokenize`, { body: { model: "speaker", messages: HELLO } })).tokens;
found.detokenized = (await client.post(`${address}/detokenize`, { body: { model: "speaker", tokens: [104, 105] } })).prompt;
found.template = (await client.post(`${address}/apply-template`, { body: { model: "speaker", messages: HELLO } })).prompt;
found.score = (await client.post("/score", { body: { model: "shakespeare", input: ["ROMEO:"] } })).data[0];
found.attention = (await client.post("/attention", { body: { model: "shakespeare", prompt: "ROMEO:", block: 0 } })).weights.length;
found.marks = await client.get(`${address}/tokenizer_info?model=speaker`);
found.health = await client.get(`${address}/health`);

found.noModel = await refusal(client.chat.completions.create({ model: "nobody", messages: HELLO }));
found.noTools = await refusal(
  client.chat.completions.create({ ...chat, tools: [{ type: "function", function: { name: "f", parameters: {} } }] }),
);
found.badOption = await refusal(client.completions.create({ ...text, temperature: -1 }));
found.tooLong = await refusal(client.completions.create({ ...text, prompt: "x ".repeat(2000) }));
found.noEmbeddings = await refusal(client.embeddings.create({ model: "speaker", input: "hi" }));
const stranger = new OpenAI({ baseURL: `${address}/v1`, apiKey: "wrong", maxRetries: 0 });
found.noKey = await refusal(stranger.models.list());

const aborted = await client.completions.create({ ...text, max_tokens: 200, stream: true });
found.aborted = 0;
for await (const chunk of aborted) {
  found.aborted += chunk.choices.length;
  if (found.aborted === 2) aborted.controller.abort();
}

process.stdout.write(JSON.stringify(found));
