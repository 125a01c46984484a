/** A conversation as messages, of which the server makes the prompt. */

/**
 * The messages to send: past turns, and the new message. The oldest turns are left out, whole, until the prompt and the
 * reply fit the context; what alone does not fit is left to the server to refuse.
 * @param {Turn[]} turns oldest first; the last one is to be answered.
 * @param {string} system a system prompt, or an empty text.
 * @param {number} room tokens that the prompt may take.
 * @param {(messages: object[]) => Promise<number>} count how many tokens messages take.
 * @returns {Promise<{messages: object[], left: number}>} `left`: how many of the oldest turns were left out.
 */
export async function fitting(turns, system, room, count) {
  const first = system ? [{ role: "system", content: system }] : [];
  const newest = { role: "user", content: turns.at(-1).message };
  const past = turns.slice(0, -1).map(({ message, answer }) => [
    { role: "user", content: message },
    { role: "assistant", content: answer },
  ]);
  for (let left = 0; ; left++) {
    const messages = [...first, ...past.slice(left).flat(), newest];
    if (left === past.length || (await count(messages)) <= room) return { messages, left };
  }
}
