/** A conversation as messages, of which the server makes the prompt. */

/** As many of the newest turns as fit the context. */
export class Messages {
  constructor() {
    this.turns = []; // [question, answer], oldest first
  }

  /**
   * The messages to send: past turns, and the new one. The oldest turns are left out, whole, until the prompt and the
   * reply fit the context; what alone does not fit is left to the server to refuse.
   * @param {string} message
   * @param {number} room tokens that the prompt may take.
   * @param {(messages: object[]) => Promise<number>} count how many tokens messages take.
   * @returns {Promise<object[]>}
   */
  async with(message, room, count) {
    for (;;) {
      const past = this.turns.flatMap(([question, answer]) => [
        { role: "user", content: question },
        { role: "assistant", content: answer },
      ]);
      const whole = [...past, { role: "user", content: message }];
      if (!this.turns.length || (await count(whole)) <= room) return whole;
      this.turns.shift();
    }
  }

  /** Completes a turn. */
  add(message, reply) {
    this.turns.push([message, reply]);
  }

  /** Forgets all turns. */
  reset() {
    this.turns = [];
  }
}
