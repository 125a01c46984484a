/** A texture as a picture: a square for each number, with zoom, pan, values under the pointer, and a selected texel. */

import { button, element } from "../page/elements.js";
import { number } from "./words.js";

const MASKED = -1e29;
const SHARE = 0.995; // of the numbers, which the scale covers
const [BESIDE, ABOVE] = [72, 60]; // pixels for the words of lines and columns
const ROOM_FOR_TEXT = 50; // pixels of a square in which its number is written
const SLOW = 1.25; // factor of a step of the wheel

/**
 * What a view shows.
 * @typedef {object} Shown
 * @property {number} width numbers of a line.
 * @property {number} height lines.
 * @property {ArrayLike<number>} values line by line.
 * @property {string} name for those who do not see it.
 * @property {(x: number, y: number) => string} label describes a square.
 * @property {string[]} [lines] a word for each line.
 * @property {string[]} [columns] a word for each number of a line.
 * @property {number} [stripe] numbers between two thin lines; 0 for none.
 */

/** See the head of this file. */
export class TextureView {
  /**
   * @param {{height: number, onPick?: (x: number, y: number) => void}} options `height`: most pixels; `onPick` is called
   *   for the square that is chosen.
   */
  constructor({ height, onPick = () => {} }) {
    this.most = height;
    this.onPick = onPick;
    /** @type {Shown|null} */
    this.shown = null;
    this.chosen = null;
    this.canvas = element("canvas", { tabIndex: 0, className: "texels" });
    this.canvas.setAttribute("role", "application");
    this.says = element("output", { className: "says" });
    this.says.setAttribute("aria-live", "polite");
    this.scale = element("p", { className: "scale" });
    const tools = element("div", { className: "tools" }, button("−", () => this.zoom(1 / 2), { ariaLabel: "Zoom out" }),
      button("+", () => this.zoom(2), { ariaLabel: "Zoom in" }), button("Fit", () => this.fit()));
    this.foot = element("div", { className: "foot" }, this.scale, tools);
    this.root = element("div", { className: "view" }, this.canvas, this.foot, this.says);
    this.listen();
    new ResizeObserver(() => {
      this.image = null; // on paper the colours are others
      this.fit();
    }).observe(this.root);
  }

  /** Shows numbers, with the same view where they have the size and words of those before. */
  show(shown) {
    const form = ({ width, height, lines, columns }) => [width, height, Boolean(lines), Boolean(columns)].join();
    const same = this.shown !== null && form(this.shown) === form(shown);
    this.shown = shown;
    if (!same) this.chosen = null;
    this.canvas.setAttribute("aria-label", `${shown.name}: ${shown.height} lines of ${shown.width} numbers. Arrow keys choose one.`);
    this.range();
    this.image = null;
    if (same) this.draw();
    else this.fit();
    this.say(this.chosen);
  }

  /** The scale: symmetric, and large enough for nearly all numbers. */
  range() {
    const sizes = [];
    let [odd, masked] = [0, 0];
    for (const value of this.shown.values) {
      if (!Number.isFinite(value)) odd++;
      else if (value <= MASKED) masked++;
      else sizes.push(Math.abs(value));
    }
    sizes.sort((one, other) => one - other);
    this.limit = sizes[Math.floor(SHARE * (sizes.length - 1))] || sizes.at(-1) || 1;
    const notes = [odd && `${odd} NaN or infinite`, masked && `${masked} masked`].filter(Boolean);
    const largest = sizes.length ? `largest ${number(sizes.at(-1))}` : "no number";
    const bar = element("span", { className: "bar" });
    this.scale.replaceChildren(`−${number(this.limit)} `, bar, ` ${number(this.limit)}`, element("span", { className: "quiet" }, `  ${[largest, ...notes].join(", ")}`));
  }

  /** As wide as there is room: all lines of a picture that has a word for each or room for one, otherwise squares at least. */
  fit() {
    if (!this.shown || !this.root.clientWidth) return;
    const { width, height, lines, columns } = this.shown;
    const room = this.root.clientWidth;
    const each = this.most / height;
    this.gutter = lines && each >= 10 && room > 400 ? BESIDE : 0;
    this.across = Math.min(64, (room - this.gutter) / width);
    this.up = Math.min(48, lines || each >= 10 ? Math.min(each, Math.max(this.across, 22)) : Math.max(this.across, each));
    const high = Math.max(20, Math.min(this.most, Math.ceil(this.up * height)));
    this.head = columns && this.gutter && this.across >= 14 ? ABOVE : 0;
    this.least = [this.across, this.up];
    [this.left, this.top] = [0, 0];
    this.resize(room, this.head + high);
    this.draw();
  }

  /** Paints again, in the colours of now. */
  repaint() {
    this.image = null;
    if (this.root.isConnected) this.draw(); // one that is not on the page has no colours
  }

  resize(width, height) {
    const dots = globalThis.devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [Math.round(width * dots), Math.round(height * dots)];
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.size = [width, height];
  }

  colours() {
    const style = getComputedStyle(this.root);
    const parse = (name) => style.getPropertyValue(name).match(/\w\w/g).map((pair) => parseInt(pair, 16));
    return { zero: parse("--zero"), plus: parse("--plus"), minus: parse("--minus"), none: parse("--masked"), odd: [226, 0, 226] };
  }

  /** The picture with a pixel for each number. */
  painted() {
    const { width, height, values } = this.shown;
    const picture = new OffscreenCanvas(width, height);
    const image = new ImageData(width, height);
    const { zero, plus, minus, none, odd } = this.colours();
    for (let index = 0; index < width * height; index++) {
      const value = values[index];
      const share = Math.min(1, Math.abs(value) / this.limit);
      const end = value < 0 ? minus : plus;
      const colour = !Number.isFinite(value) ? odd : value <= MASKED ? none : zero.map((from, part) => from + share * (end[part] - from));
      image.data.set([...colour, 255], 4 * index);
    }
    picture.getContext("2d").putImageData(image, 0, 0);
    return picture;
  }

  draw() {
    if (!this.shown || !this.size) return;
    this.image ??= this.painted();
    const { width, height, lines, columns, stripe } = this.shown;
    const dots = this.canvas.width / this.size[0];
    const pen = this.canvas.getContext("2d");
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, ...this.size);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, this.head, this.size[0] - this.gutter, this.size[1] - this.head);
    pen.clip();
    pen.translate(this.gutter - this.left, this.head - this.top);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.image, 0, 0, width * this.across, height * this.up);
    const ink = getComputedStyle(this.root).color;
    if (stripe) {
      pen.fillStyle = ink;
      pen.globalAlpha = 0.35;
      for (let x = stripe; x < width; x += stripe) pen.fillRect(x * this.across - 0.5, 0, 1, height * this.up);
      pen.globalAlpha = 1;
    }
    this.write(pen);
    if (this.chosen) {
      const [x, y] = this.chosen;
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      const box = (at, count, size) => [Math.min(at * size, count * size - 6) + 1, Math.max(4, size - 2)]; // inside the picture
      const [[left, wide], [top, high]] = [box(x, width, this.across), box(y, height, this.up)];
      pen.strokeRect(left, top, wide, high);
    }
    pen.restore();
    pen.fillStyle = ink;
    pen.font = "12px ui-monospace, monospace";
    pen.textBaseline = "middle";
    const label = (words, each, from, room, most, move) => words.forEach((word, index) => {
      const at = (index + 0.5) * each - from;
      if (at <= 0 || at >= room) return;
      pen.save();
      move(at);
      pen.fillText(word.slice(0, 8), 0, 0, most);
      pen.restore();
    });
    if (this.gutter) label(lines, this.up, this.top, this.size[1] - this.head, BESIDE - 6, (at) => pen.translate(0, this.head + at));
    if (this.head) {
      label(columns, this.across, this.left, this.size[0] - this.gutter, ABOVE - 6, (at) => {
        pen.translate(this.gutter + at, this.head - 4);
        pen.rotate(-Math.PI / 2);
      });
    }
  }

  /** Numbers in their squares, where there is room. */
  write(pen) {
    if (this.across < ROOM_FOR_TEXT || this.up < 14) return;
    const { width, height, values } = this.shown;
    const style = getComputedStyle(this.root);
    const [weak, strong] = [style.color, style.getPropertyValue("--on-plus")];
    pen.font = "11px ui-monospace, monospace";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const [first, last] = [Math.floor(this.left / this.across), Math.ceil((this.left + this.size[0]) / this.across)];
    for (let y = Math.max(0, Math.floor(this.top / this.up)); y < Math.min(height, (this.top + this.size[1]) / this.up); y++) {
      for (let x = Math.max(0, first); x < Math.min(width, last); x++) {
        const value = values[y * width + x];
        if (value <= MASKED) continue;
        pen.fillStyle = Math.abs(value) > 0.6 * this.limit ? strong : weak;
        pen.fillText(number(value), (x + 0.5) * this.across, (y + 0.5) * this.up, this.across - 4);
      }
    }
    pen.textAlign = "start";
  }

  /** Zooms around a point of the canvas, the middle if left out. */
  zoom(factor, x = this.size[0] / 2, y = this.size[1] / 2) {
    const before = [this.left + x - this.gutter, this.top + y - this.head];
    const across = Math.min(96, Math.max(this.least[0], this.across * factor));
    const up = Math.min(Math.max(28, this.least[1]), Math.max(this.least[1], this.up * factor));
    this.left = (before[0] * across) / this.across - x + this.gutter;
    this.top = (before[1] * up) / this.up - y + this.head;
    [this.across, this.up] = [across, up];
    this.bound();
  }

  bound() {
    const { width, height } = this.shown;
    this.left = Math.max(0, Math.min(this.left, width * this.across - this.size[0] + this.gutter));
    this.top = Math.max(0, Math.min(this.top, height * this.up - this.size[1] + this.head));
    this.draw();
  }

  /** The square at a point of the window. */
  at({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor((clientX - box.left - this.gutter + this.left) / this.across);
    const y = Math.floor((clientY - box.top - this.head + this.top) / this.up);
    return x >= 0 && y >= 0 && x < this.shown.width && y < this.shown.height ? [x, y] : null;
  }

  /** Chooses a square, and brings it into the view. */
  choose(x, y, tell = true) {
    const { width, height } = this.shown;
    this.chosen = [Math.max(0, Math.min(width - 1, x)), Math.max(0, Math.min(height - 1, y))];
    const [left, top] = [this.chosen[0] * this.across, this.chosen[1] * this.up];
    const room = this.size[0] - this.gutter;
    this.left = Math.min(left, Math.max(this.left, left + this.across - room));
    this.top = Math.min(top, Math.max(this.top, top + this.up - this.size[1] + this.head));
    this.bound();
    this.say(this.chosen);
    if (tell) this.onPick(...this.chosen);
  }

  say(texel) {
    this.says.textContent = texel ? this.shown.label(...texel) : " ";
  }

  listen() {
    const { canvas } = this;
    let from = null;
    canvas.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, left: this.left, top: this.top, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.shown) return;
      if (from && Math.hypot(event.clientX - from.x, event.clientY - from.y) > 4) from.moved = true;
      if (from?.moved) {
        [this.left, this.top] = [from.left + from.x - event.clientX, from.top + from.y - event.clientY];
        this.bound();
      } else this.say(this.at(event) ?? this.chosen);
    });
    canvas.addEventListener("pointerup", (event) => {
      const texel = from && !from.moved && this.at(event);
      from = null;
      if (texel) this.choose(...texel);
    });
    canvas.addEventListener("pointerleave", () => this.shown && this.say(this.chosen));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(event.deltaY < 0 ? SLOW : 1 / SLOW, event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const [x, y] = this.chosen ?? [0, 0];
    const step = event.shiftKey ? 8 : 1;
    if (moves[event.key]) this.choose(x + step * moves[event.key][0], y + step * moves[event.key][1]);
    else if (event.key === "+" || event.key === "=") this.zoom(2, (x + 0.5) * this.across - this.left + this.gutter, (y + 0.5) * this.up - this.top + this.head);
    else if (event.key === "-") this.zoom(1 / 2);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the page's own keys
  }
}
