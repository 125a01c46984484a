// Markdown of answers as plain values: what a model writes becomes no tag, attribute or address but those of a short list.

import assert from "node:assert/strict";
import test, { before, describe } from "node:test";

import { laidOut } from "./runtime.js";

const TAGS = new Set(
  "p h3 blockquote ul ol li em strong s table thead tbody tr th td code pre a br hr".split(" "),
);
const FIELDS = new Set(["tag", "children", "href", "start", "level", "language", "code"]);
const DEEPEST = 32;

/** All elements of an answer, checked against what is allowed; and all of its texts. */
function walked(nodes, depth = 0, found = { elements: [], texts: [] }) {
  assert.ok(depth < DEEPEST, "too deep");
  for (const node of nodes) {
    if (typeof node === "string") {
      found.texts.push(node);
      continue;
    }
    assert.ok(TAGS.has(node.tag), node.tag);
    for (const field of Object.keys(node)) assert.ok(FIELDS.has(field), field);
    if (node.href !== undefined) assert.match(node.href, /^(https?:\/\/|mailto:)/);
    found.elements.push(node);
    walked(node.children, depth + 1, found);
  }
  return found;
}

const HOSTILE = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg onload=alert(1)><script>alert(1)</script></svg>",
  '<style>body{display:none}</style><p style="position:fixed">x</p>',
  "<iframe src=https://evil.example></iframe><base href=https://evil.example><meta http-equiv=refresh content=0>",
  "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java\tscript:alert(1)) [d](&#106;avascript:alert(1))",
  "[a](data:text/html,<script>alert(1)</script>) ![b](data:image/svg+xml,<svg/onload=alert(1)>)",
  "[a](vbscript:x) [b](file:///etc/passwd) [c](blob:https://a/b) [d](//evil.example) [e](../plan.json) [f](#x)",
  "<javascript:alert(1)> <data:text/html,x>",
  '[a](https://a.example "onclick=alert(1)") [b](https://a.example/" onclick="alert(1))',
  "```<img src=x onerror=alert(1)>\n<script>alert(1)</script>\n```",
  "| <script>alert(1)</script> | b |\n|---|---|\n| <img src=x onerror=alert(1)> | ![x](https://evil.example/x.png) |",
  "[a]: javascript:alert(1)\n\n[a] ![a]",
  "# <b onmouseover=alert(1)>x</b>",
  "- ".repeat(500) + "x",
  "\u0000\ufffe\ud800",
];

describe("hostile answers", () => {
  let elementsOf;
  before(async () => ({ elementsOf } = await laidOut()("markdown_answers.js")));

  for (const text of HOSTILE) {
    test(JSON.stringify(text.slice(0, 60)), () => {
      for (let end = 0; end <= text.length; end += text.length > 200 ? 97 : 1) walked(elementsOf(text.slice(0, end))); // as it is written
      walked(elementsOf(text));
    });
  }

  test("tags of HTML are shown as they are written", () => {
    const { elements, texts } = walked(elementsOf("<b id=bad>&amp; <script>alert(1)</script>"));
    assert.equal(texts.join(""), "<b id=bad>& <script>alert(1)</script>");
    assert.deepEqual(elements.map(({ tag }) => tag), ["p"]);
  });

  test("deep and long answers take no long time and no deep tree", () => {
    const count = 20_000;
    const many = [">", "> ", "*a ", "a**b", "_a", "[", "[a](", "![", "<", "<a ", "<!--", "&", "1. ", "\t- ", "~~a", "*_~`[(<", "* * * a\n"];
    const texts = many.map((piece) => piece.repeat(count / piece.length));
    texts.push("*a ".repeat(count / 6) + "b* ".repeat(count / 6));
    texts.push(Array.from({ length: 400 }, (_, depth) => `${" ".repeat(2 * depth)}- a`).join("\n"));
    texts.push("[".repeat(count / 2) + "a" + "](https://a.example)".repeat(count / 20));
    for (const text of texts) {
      const start = performance.now();
      walked(elementsOf(text));
      assert.ok(performance.now() - start < 5000, `${text.slice(0, 20)} took ${performance.now() - start} ms`);
    }
    assert.equal(elementsOf("a".repeat(200_001)), null);
  });

  test("marks that turn the direction are shown in code and links, and not in texts", () => {
    const { texts, elements } = walked(elementsOf("a\u202eb `c\u202ed` [e\u2066f](https://a.example)\n\n```\ng\u202eh\n```"));
    assert.deepEqual(texts, ["a\u202eb ", "c⟨U+202E⟩d", " ", "e⟨U+2066⟩f", "g⟨U+202E⟩h\n"]);
    assert.equal(elements.find(({ tag }) => tag === "pre").code, "g\u202eh\n", "what is copied is what was written");
  });
});

describe("formatted answers", () => {
  let elementsOf;
  before(async () => ({ elementsOf } = await laidOut()("markdown_answers.js")));

  test("what models write has its elements", () => {
    const written = "## A *b*\n\none\ntwo **three** ~~x~~\n\n3. c\n4. d\n   - e\n\n> f\n\n---\n\n| g | h |\n|---|--:|\n| i | j |";
    const expected = [
      { tag: "h3", level: 2, children: ["A ", { tag: "em", children: ["b"] }] },
      {
        tag: "p",
        children: [
          ...["one", { tag: "br", children: [] }, "two ", { tag: "strong", children: ["three"] }, " "],
          { tag: "s", children: ["x"] },
        ],
      },
      {
        tag: "ol",
        start: 3,
        children: [
          { tag: "li", children: ["c"] },
          { tag: "li", children: ["d", { tag: "ul", children: [{ tag: "li", children: ["e"] }] }] },
        ],
      },
      { tag: "blockquote", children: [{ tag: "p", children: ["f"] }] },
      { tag: "hr", children: [] },
      {
        tag: "table",
        children: [
          { tag: "thead", children: [{ tag: "tr", children: ["g", "h"].map((text) => ({ tag: "th", children: [text] })) }] },
          { tag: "tbody", children: [{ tag: "tr", children: ["i", "j"].map((text) => ({ tag: "td", children: [text] })) }] },
        ],
      },
    ];
    assert.deepEqual(elementsOf(written), expected);
  });

  test("a picture is a link to it, and a link keeps its address", () => {
    const { elements } = walked(elementsOf("![a *b*](https://a.example/x.png) [c](mailto:d@e.example) <https://f.example>"));
    assert.deepEqual(
      elements.filter(({ tag }) => tag === "a").map(({ href, children }) => [href, children]),
      [
        ["https://a.example/x.png", ["a *b*"]],
        ["mailto:d@e.example", ["c"]],
        ["https://f.example/", ["https://f.example"]],
      ],
    );
  });

  test("code has its language, and goes on to the end while it is written", () => {
    const [block] = elementsOf("```js extra\nlet a = '<b>';");
    assert.deepEqual(block, { tag: "pre", language: "js", code: "let a = '<b>';", children: ["let a = '<b>';"] });
    const [indented] = elementsOf("    a\n    b");
    assert.deepEqual([indented.tag, indented.language, indented.code], ["pre", "", "a\nb\n"]);
  });

  test("every beginning of an answer can be shown", () => {
    const text = "# T\n\n1. a **b** `c`\n\n```py\nx = [1](2)\n```\n\n| a | b |\n|--|--|\n| [c](https://d.example) | ![e](f) |\n";
    for (let end = 0; end <= text.length; end++) walked(elementsOf(text.slice(0, end)));
  });
});
