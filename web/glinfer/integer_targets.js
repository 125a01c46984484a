/**
 * Float textures as textures of integers, for browsers that cannot render to floats (no EXT_color_buffer_float). The
 * browser's side of glinfer/gl/integer_targets.py, with the same shaders as a result.
 */

/** The shader file that the rewritten shaders begin with. */
export const INTEGER_TARGETS = "common/integer_targets.glsl";

const FLOATS = ["uvec4", "floatBitsToUint"];
const BITS = { r32f: FLOATS, rgba32f: FLOATS, rgba16f: ["ivec4", "halves_of_floats"] };
const OUTPUT = /(?:layout\(location = (\w+)\) )?\bout (vec4|float|ELEMENTS) (\w+);/g;
const UNIFORMS = /\buniform (highp )?(\w*SAMPLER|sampler2D) ([\w, ]+);/g;
/** @type {[RegExp, string][]} */
const WORDS = [
  [/\bsampler2D\b/g, "usampler2D[1]"],
  [/(precision \w+ usampler2D)\[1\]/g, "$1"],
  [/\btexelFetch\(/g, "FETCHED("],
  [/\btexture\(/g, "LOOKED_UP("],
  [/\btextureSize\(/g, "SIZE_OF("],
  [/\bmain\b/g, "computed"],
];

/**
 * A plan whose float textures hold bits, with a program for each combination of formats that its shaders meet.
 * @param {object} plan plan.json.
 * @returns {object}
 */
export function withIntegerTargets(plan) {
  const numbers = new Map();
  const programs = [];
  const formatsOf = (indices) => indices.map((index) => plan.textures[index].format);
  const redrawn = (draws) =>
    draws.map((draw) => {
      const program = plan.programs[draw.program];
      const inputs = formatsOf(draw.inputs);
      const halves = program.samplers.filter((_, index) => inputs[index] === "rgba16f");
      const targets = formatsOf(draw.outputs);
      const key = JSON.stringify([draw.program, halves, targets]);
      if (!numbers.has(key)) numbers.set(key, programs.push({ ...program, integers: { halves, targets } }) - 1);
      return { ...draw, program: numbers.get(key) };
    });
  const companion = ([name, spec]) => [name, { ...spec, draws: redrawn(spec.draws) }];
  return {
    ...plan,
    draws: redrawn(plan.draws),
    companions: Object.fromEntries(Object.entries(plan.companions).map(companion)),
    programs,
    textures: plan.textures.map((spec) => ({ ...spec, integers: true })),
  };
}

/**
 * A fragment shader for integer targets.
 * @param {import("./program.js").Source} source
 * @param {{halves: string[], targets: string[]}} formats its samplers of half floats, and the formats of its outputs.
 * @param {string} common the text of `INTEGER_TARGETS`.
 * @returns {import("./program.js").Source}
 */
export function rewritten({ text, origin }, { halves, targets }, common) {
  const names = new Map(targets.map((_, index) => [String(index), `y${index}`]));
  for (const [, location, , name] of text.matchAll(OUTPUT)) names.set(location ?? "0", name);
  const declared = (_, highp, kind, list) => {
    const all = list.split(", ");
    const apart = all.filter((name) => halves.includes(name) || halves.includes(`${name.toLowerCase()}0`));
    const rest = all.filter((name) => !apart.includes(name));
    const groups = [["isampler2D[1]", apart], [kind, rest]];
    return groups.flatMap(([each, group]) => (group.length ? [`uniform ${each} ${group.join(", ")};`] : [])).join(" ");
  };
  let own = text.replace(UNIFORMS, declared).replace(OUTPUT, "$2 $3;");
  for (const [word, other] of WORDS) own = own.replace(word, other);
  const [version, ...lines] = own.trimEnd().split("\n");
  const before = common.trimEnd().split("\n");
  const floats = [...targets.keys()].filter((each) => targets[each] in BITS);
  const after = [
    ...floats.map((each) => `layout(location = ${each}) out ${BITS[targets[each]][0]} bits${each};`),
    "void main() {",
    "    computed();",
    ...floats.map((each) => `    bits${each} = ${BITS[targets[each]][1]}(vec4(${names.get(String(each))}));`),
    "}",
  ];
  /** @type {(line: string, index: number) => [string, number]} */
  const location = (_, index) => [INTEGER_TARGETS, index + 1];
  return {
    text: [version, ...before, ...lines, ...after].join("\n") + "\n",
    origin: [origin[0], ...before.map(location), ...origin.slice(1)],
  };
}
