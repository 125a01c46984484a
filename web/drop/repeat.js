/** A program for more blocks than its plan has: a group of blocks in the middle is repeated. See glinfer/export/drop.py. */

const BLOCK = /^(h|blk)\.(\d+)\./;
const TEXTURES = ["input", "picks", "table", "logits"]; // keys with numbers of textures, in a plan or a companion

/**
 * A program with as many blocks as a file.
 * @param {object} program
 * @param {number} blocks as many as its plan has, or whole groups more.
 * @returns {object} the program, its plan and its tables.
 */
export function repeated(program, blocks) {
  const { plan, repeats: [least, step] } = program; // prettier-ignore
  if (blocks === least) return program;
  const times = (blocks - least) / step;
  const group = (name) => Math.floor(Number(BLOCK.exec(name)?.[2] ?? -1) / step); // 1 is the one that is repeated

  /** The new name of something of a block, in copy number `copy` of the group. */
  const named = (name, copy) => {
    const further = step * (group(name) > 1 ? times : group(name) === 1 ? copy : 0);
    return name.replace(BLOCK, (_, word, number) => `${word}.${Number(number) + further}.`);
  };

  /** A list in which each entry of the group, and with it the group, is followed by its copies. */
  const longer = (list, name, made) => {
    const [start, end] = edges(list, name);
    const copies = Array.from({ length: times }, (_, copy) => list.slice(start, end).map((each) => made(each, copy + 1)));
    return [...list.slice(0, end).map((each) => made(each, 0)), ...copies.flat(), ...list.slice(end).map((each) => made(each, 0))];
  };
  const edges = (list, name) => [list.findIndex((each) => group(name(each)) === 1), list.findLastIndex((each) => group(name(each)) === 1) + 1];

  /** The new number of an entry of a list, seen from a copy of the group. */
  const moved = (list) => {
    const [start, end] = edges(list, ({ name }) => name);
    return (number, copy) => number + (number >= end ? times : number >= start ? copy : 0) * (end - start);
  };
  const texture = moved(plan.textures);
  const numbers = (found, copy) => (Array.isArray(found) ? found.map((each) => texture(each, copy)) : texture(found, copy));
  const drawn = (draw, copy) => ({ ...draw, name: named(draw.name, copy), inputs: numbers(draw.inputs, copy), outputs: numbers(draw.outputs, copy) });
  const draw = moved(plan.draws);
  const withNumbers = (entry) => {
    const found = TEXTURES.filter((key) => typeof entry[key] === "number" || Array.isArray(entry[key]));
    return { ...entry, ...Object.fromEntries(found.map((key) => [key, numbers(entry[key], 0)])), draws: longer(entry.draws, nameOf, drawn) };
  };
  const deep = (value, copy) => JSON.parse(JSON.stringify(value), (_, each) => (typeof each === "string" ? named(each, copy) : each));
  const byName = (entries) => Object.fromEntries(longer(Object.entries(entries), ([name]) => name, deep));
  const textures = longer(plan.textures, nameOf, (each, copy) => ({ ...each, name: named(each.name, copy), tensor: each.tensor && named(each.tensor, copy) }));
  const companions = Object.entries(plan.companions).map(([name, each]) => [name, { ...withNumbers(each), ...(each.tail === undefined ? {} : { tail: draw(each.tail, 0) }) }]);
  const picture = (each, copy) => ({ ...each, name: named(each.name, copy), texture: texture(each.texture, copy), draw: draw(each.draw, copy) });
  const tensors = byName(program.tensors);
  return {
    ...program,
    tensors,
    weights: longer(program.weights, nameOf, deep),
    plan: {
      ...withNumbers(plan),
      textures,
      companions: Object.fromEntries(companions),
      logits: { ...plan.logits, texture: texture(plan.logits.texture, 0) },
      pictures: longer(plan.pictures, nameOf, picture),
    },
  };
}

function nameOf({ name }) {
  return name;
}
