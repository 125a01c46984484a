/** The turns of a conversation in the page. */

import { Answer } from "./answer.js";
import { copyButton } from "./copy.js";
import { $, button, element } from "./elements.js";

const NEAR_END = 40; // pixels

/** One turn in the page: what was asked, and the answer to it, in one article or in two. */
class TurnView {
  constructor(turn, { chats, edit, again }) {
    this.turn = turn;
    const editing = button("Edit", () => this.edit(edit), { className: "small" });
    const regenerating = button("Regenerate", () => again(this), { className: "small again" });
    const { message, thinking, answer, model } = turn;
    if (chats) {
      this.asked = this.article("You", message, "", copyButton("Copy", () => turn.message), editing);
      this.asked.classList.add("asked");
      this.replied = this.article(model, "", thinking, copyButton("Copy", () => turn.answer), regenerating);
    } else {
      const copying = copyButton("Copy", () => turn.message + turn.answer);
      this.asked = this.replied = this.article(model, message, thinking, copying, editing, regenerating);
    }
    this.answer = new Answer(this.part("answer"), chats);
    if (answer) this.answer.add(answer);
    this.answer.show();
  }

  article(who, given, thinking, ...buttons) {
    const part = (className, textContent, tag = "span") => element(tag, { className, textContent });
    const parts = [part("who", who), part("given", given), part("thinking", thinking), part("answer", "", "div")];
    const made = element("article", { className: "turn" }, ...parts, element("div", { className: "actions" }, ...buttons));
    made.setAttribute("aria-label", who);
    return made;
  }

  part(className) {
    return this.replied.querySelector(`.${className}`);
  }

  /** Takes a piece of what the model writes. */
  add(kind, text) {
    if (kind === "thinking") {
      this.turn.thinking += text;
      this.part("thinking").append(text);
    } else if (kind === "answer") {
      this.turn.answer += text;
      this.answer.add(text);
    }
  }

  /** Lets the person write the message anew. */
  edit(done) {
    const given = this.asked.querySelector(".given");
    const actions = this.asked.querySelector(".actions");
    const field = element("textarea", { value: this.turn.message, rows: 3, dir: "auto" });
    field.setAttribute("aria-label", "Edit your text");
    const end = () => {
      form.remove();
      given.hidden = actions.hidden = false;
      $("message").focus();
    };
    const send = () => {
      if (!field.value.trim()) return;
      end();
      done(this, field.value);
    };
    const buttons = [button("Send again", send), button("Cancel", end)];
    const hint = element("small", { textContent: "Everything after it is deleted." });
    const form = element("div", { className: "edit" }, field, element("div", { className: "row" }, ...buttons, hint));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    given.hidden = actions.hidden = true;
    given.after(form);
    field.focus();
  }
}

/** See the head of this file. */
export class Log {
  /**
   * @param {{edit: (index: number, message: string) => void, again: (index: number) => void}} handlers what is done when
   *   somebody has written the message at an index anew, or wants another answer to it.
   */
  constructor(handlers) {
    this.handlers = handlers;
    this.views = [];
  }

  /** Shows turns instead of all others. */
  show(turns, chats) {
    this.keep(0);
    for (const turn of turns) this.add(turn, chats);
  }

  /**
   * Adds a turn at the end.
   * @param {Turn} turn see store.js; what is written goes into it.
   * @param {boolean} chats whether it is a message and its reply, or a text that goes on.
   * @returns {TurnView}
   */
  add(turn, chats) {
    const edit = (view, message) => this.handlers.edit(this.views.indexOf(view), message);
    const again = (view) => this.handlers.again(this.views.indexOf(view));
    const view = new TurnView(turn, { chats, edit, again });
    this.views.push(view);
    $("log").append(...new Set([view.asked, view.replied]));
    $("log").scrollTop = $("log").scrollHeight;
    return view;
  }

  /** Does something that makes the log longer, and follows its end where that was to be seen. */
  grow(change) {
    const log = $("log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
    change();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  /** Keeps the first turns, and removes the others. */
  keep(count) {
    for (const { asked, replied } of this.views.splice(count)) {
      asked.remove();
      replied.remove();
    }
  }

  /** Says that the model no longer sees the oldest turns. */
  markLeft(count) {
    document.querySelector("#log .left-out")?.remove();
    if (!count) return;
    const text = "The context was full: the model does not see the messages above.";
    this.views[count]?.asked.prepend(element("p", { className: "left-out hint", textContent: text }));
  }
}
