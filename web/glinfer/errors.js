/** An error that a user can understand: one clear sentence in `message`. */
export class GlinferError extends Error {
  /** @param {string} message what was found, what was expected, what to do. */
  constructor(message) {
    super(message);
    this.name = "GlinferError";
  }
}
