/** Answers as they are written; a site that has the library for Markdown has markdown_answers.js instead. */

/**
 * The elements of an answer, see page/answer.js; given its text, as far as it is written.
 * @returns {AnswerNode[]|null} null: the text is shown as it is.
 */
export function elementsOf() {
  return null;
}
