/**
 * Markdown of answers as elements; it has the name answers.js in a site. The library parses, and its tokens become
 * plain values of a fixed list of tags: nothing here makes HTML, so that none of a model's can run.
 */

import MarkdownIt from "./libraries/markdown-it.js";

const MOST = 200_000; // characters of an answer; a longer one is shown as it is written
const DEEPEST = 24; // elements inside one another; deeper ones are left out, and their text stays
const LINKS = new Set(["http:", "https:", "mailto:"]);
const TAGS = new Set(
  ["p", "blockquote", "ul", "ol", "li", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td"],
);
// Marks that turn the direction of what follows: code and the texts of links show them instead of obeying.
const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

const markdown = new MarkdownIt("default", { html: false, linkify: false, typographer: false, breaks: true, maxNesting: DEEPEST });
markdown.validateLink = (url) => addressOf(url) !== null;

/** The address that a link may have, or null. */
function addressOf(url) {
  try {
    const found = new URL(url); // without a base: a relative one would lead into this site
    return LINKS.has(found.protocol) ? found.href : null;
  } catch {
    return null;
  }
}

function shown(text) {
  return text.replace(TURNS, (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** Elements that are open, the innermost last, into which nodes go. */
class Tree {
  constructor() {
    this.top = [];
    this.open = [{ children: this.top, type: "" }];
  }

  add(node) {
    this.open.at(-1).children.push(node);
  }

  /** Opens an element; null, or one too deep, gives its children to the element around it. */
  begin(type, node) {
    if (node === null || this.open.length > DEEPEST) {
      this.open.push({ children: this.open.at(-1).children, type });
      return;
    }
    this.add(node);
    this.open.push({ children: node.children, type });
  }

  end() {
    this.open.pop();
  }

  /** Whether the current node is inside a link. */
  get inLink() {
    return this.open.some(({ type }) => type === "link_open");
  }
}

function elementOf(token) {
  const { type, tag } = token;
  if (type === "heading_open") return { tag: "h3", level: Number(tag.slice(1)), children: [] };
  if (type === "link_open") {
    const href = addressOf(token.attrGet("href"));
    return href && { tag: "a", href, children: [] };
  }
  if (token.hidden || !TAGS.has(tag)) return null;
  const start = type === "ordered_list_open" ? Number(token.attrGet("start") ?? 1) : 1;
  return start === 1 ? { tag, children: [] } : { tag, start, children: [] };
}

function fill(tree, tokens) {
  for (const token of tokens) {
    if (token.nesting === 1) tree.begin(token.type, elementOf(token));
    else if (token.nesting === -1) tree.end();
    else leaf(tree, token);
  }
}

function leaf(tree, token) {
  const { type, content } = token;
  switch (type) {
    case "inline":
      return fill(tree, token.children);
    case "hardbreak":
    case "softbreak":
      return tree.add({ tag: "br", children: [] });
    case "hr":
      return tree.add({ tag: "hr", children: [] });
    case "code_inline":
      return tree.add({ tag: "code", children: [shown(content)] });
    case "code_block":
    case "fence":
      return tree.add({ tag: "pre", language: token.info.trim().split(/\s+/)[0], code: content, children: [shown(content)] });
    case "image":
      return picture(tree, token);
    default:
      return content && tree.add(tree.inLink ? shown(content) : content);
  }
}

/** A picture is never loaded: its words lead to it. */
function picture(tree, token) {
  const href = addressOf(token.attrGet("src"));
  const words = shown(token.content || "picture");
  tree.add(href && !tree.inLink ? { tag: "a", href, children: [words] } : words);
}

/** See answers.js. */
export function elementsOf(text) {
  if (text.length > MOST) return null;
  const tree = new Tree();
  fill(tree, markdown.parse(text, {}));
  return tree.top;
}
