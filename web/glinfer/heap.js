/** A binary heap of numbers; the smallest is removed first. */
export class MinHeap {
  /** Starts empty. */
  constructor() {
    this.items = [];
  }

  /** The number of its entries. */
  get size() {
    return this.items.length;
  }

  /**
   * Puts a number in.
   * @param {number} item
   */
  push(item) {
    const { items } = this;
    let at = items.length;
    items.push(item);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (items[parent] <= item) break;
      items[at] = items[parent];
      at = parent;
    }
    items[at] = item;
  }

  /**
   * Takes the smallest number out.
   * @returns {number|undefined} undefined where there is none.
   */
  pop() {
    const { items } = this;
    const smallest = items[0];
    const item = items.pop();
    if (!items.length) return smallest;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= items.length) break;
      if (child + 1 < items.length && items[child + 1] < items[child]) child++;
      if (items[child] >= item) break;
      items[at] = items[child];
      at = child;
    }
    items[at] = item;
    return smallest;
  }
}
