/**
 * Cache entries of the tokens that begin every conversation (the template's first words and the system prompt), kept from
 * visit to visit. `Model.hold` then runs only the tokens after them.
 *
 * A kept file has the computed bits: the CRC-32 of all that follows, a line of JSON, and the texels of each cache.
 */

import { crc32 } from "./checksum.js";
import { pauses } from "./generate.js";
import { firstSlots } from "./layouts.js";
import { rendererOf } from "./limits.js";

/** @typedef {import("./model.js").Model} Model */

const LARGEST = 32 << 20; // bytes that are kept at most, in all
const LEAST = 4; // tokens; fewer are not worth keeping
const NEWLINE = 10;
const CHECKSUM = 4; // bytes

/**
 * The length of the common beginning of two texts.
 * @param {number[]} one
 * @param {number[]} other
 * @returns {number}
 */
export function commonLength(one, other) {
  let common = 0;
  while (common < one.length && common < other.length && one[common] === other[common]) common++;
  return common;
}

/**
 * The ids that a prompt begins with, whatever follows in its last message.
 * @param {import("./chat.js").ChatForm} form
 * @param {string} system the system prompt.
 * @param {import("./chat.js").Turn[]} turns those before the message.
 * @param {string} written the beginning of the message.
 * @returns {number[]}
 */
export function beginningOf(form, system, turns = [], written = "") {
  const messages = ["a", "1"].map((end) => written + end);
  const [one, other] = messages.map((message) => form.prompt(turns, { message, ids: form.encodeMessage(message), reply: [] }, system));
  return one.slice(0, commonLength(one, other));
}

/** The current beginning of a model's conversations. */
export class Beginning {
  /**
   * @param {Model} model
   * @param {import("./kept.js").Note|null} note where it is kept; null keeps nothing.
   */
  constructor(model, note) {
    this.model = model;
    this.note = note;
    /** @type {number[]} */
    this.ids = []; // the ids whose entries are kept
    const { plan, replay } = model;
    this.caches = replay.textures.filter(({ spec }) => spec.kind === "cache");
    this.made = [crc32(new TextEncoder().encode(JSON.stringify(plan))), rendererOf(replay.gl)]; // the plan and the renderer, on which the bits depend too
  }

  /**
   * Whether the caches hold these ids, rotated by the angles of a new text.
   * @param {number[]} ids
   * @returns {boolean}
   */
  isHeld(ids) {
    const { driver } = this.model;
    return commonLength(this.model.ids, ids) === ids.length && driver.cached >= ids.length && !driver.long;
  }

  /** Loads entries kept by an earlier visit, for the same plan and renderer, into an empty model. */
  async restore() {
    const found = (await this.note?.read()) ?? new Uint8Array(0);
    const rest = found.subarray(CHECKSUM);
    if (!rest.length || crc32(rest) !== new DataView(found.buffer).getUint32(0)) return;
    const end = rest.indexOf(NEWLINE);
    const { made, ids } = JSON.parse(new TextDecoder().decode(rest.subarray(0, end)));
    if (String(made) !== String(this.made)) return;
    let at = end + 1;
    for (const { texture, y, width, bytes } of this.parts(ids.length)) {
      texture.upload(new texture.Array(rest.slice(at, at + bytes).buffer), y, width);
      at += bytes;
    }
    this.model.append(ids);
    this.model.driver.cached = ids.length;
    this.ids = ids;
  }

  /**
   * Keeps the model's first tokens for the next visit, unless they are kept already. Reads textures, with pauses.
   * @param {number[]} ids
   */
  async keep(ids) {
    const parts = ids.length >= LEAST && commonLength(ids, this.ids) < ids.length ? this.parts(ids.length) : null;
    if (!this.note || !parts || parts.reduce((sum, { bytes }) => sum + bytes, 0) > LARGEST) return;
    /** @type {Uint8Array<ArrayBuffer>[]} */
    const texels = [];
    const pause = pauses();
    for (const { texture, y, lines, width } of parts) {
      if (!this.isHeld(ids)) return; // another text was begun meanwhile
      const { buffer } = texture.readBits(y, lines, width);
      texels.push(new Uint8Array(/** @type {ArrayBuffer} */ (buffer)));
      await pause();
    }
    const about = new TextEncoder().encode(`${JSON.stringify({ made: this.made, ids })}\n`);
    const checksum = new DataView(new ArrayBuffer(CHECKSUM));
    checksum.setUint32(0, [about, ...texels].reduce((before, each) => crc32(each, before), 0));
    this.ids = ids;
    await this.note.write(new Blob([checksum.buffer, about, ...texels]));
  }

  /** The texels of the caches for the first tokens; null where they are not adjacent, or not cached, or soon overwritten. */
  parts(tokens) {
    if (this.model.driver.cached === undefined || this.model.plan.model.rewinds) return null;
    const all = this.caches.map((texture) => ({ texture, found: firstSlots(texture.spec.layout, tokens) }));
    if (all.some(({ found }) => found === null)) return null;
    return all.flatMap(({ texture, found }) =>
      found.map(([, y, width, lines]) => ({ texture, y, lines, width, bytes: width * lines * texture.channels * texture.Array.BYTES_PER_ELEMENT })),
    );
  }
}
