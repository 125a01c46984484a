/**
 * The numbers of packed weights, as shaders/common/unpack.glsl, grouped.glsl and weights.glsl read them: float64, from the
 * words of a texture.
 */

const [HALF, PAIR, SIX_BITS, FOUR_BITS, FLOATS, SIGNED_BYTES, POWER] = [0, 1, 2, 3, 4, 5, 6]; // kinds of scales
const [BF16, I16, I8] = [4, 5, 6]; // WEIGHTS of unpack.glsl
const [ROW_BF16, ROW_Q8, ROW_Q16] = [1, 12, 13]; // FORMAT of weights.glsl

const view = new DataView(new ArrayBuffer(4));

/** The float of 32 bits. */
function floatOf(bits) {
  view.setUint32(0, bits);
  return view.getFloat32(0);
}

/** The half float of the lower 16 bits, normal or zero or subnormal. */
function halfOf(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}

const byteAt = (word, index) => (word >>> (8 * index)) & 255;
const signed = (number, bits) => (number << (32 - bits)) >> (32 - bits);

/** The value of a four-bit code: a polynomial, see common/codes.glsl. */
function valueOf(code, defines) {
  const { TABLE_DEGREE: degree, TABLE_CENTRE: centre } = defines;
  let value = 0;
  for (let power = degree; power >= 0; power--) value = value * (code - centre) + Number(defines[`TABLE_C${power}`]);
  return degree > 1 ? Math.floor(value + 0.5) : value;
}

/** Factors and minima of the halves of a group, see common/group_form.glsl. */
function scalesOf(word, shared, floats, { FORM_SCALES: kind, FORM_TABLE: table, OFFSET: offset, TABLE_UNIT: unit }) {
  const [d, least] = [halfOf(shared & 0xffff), -halfOf(shared >>> 16)];
  const twice = (factor, minimum) => ({ factors: [factor, factor], minima: [minimum, minimum] });
  const nibble = (index) => (word >>> (4 * index)) & 15;
  switch (kind) {
    case HALF:
      return twice(halfOf(word & 0xffff), -offset * halfOf(word & 0xffff));
    case PAIR:
      return twice(halfOf(word & 0xffff), halfOf(word >>> 16));
    case POWER:
      return twice(floatOf(word << 16), 0);
    case SIX_BITS:
      return twice(d * byteAt(word, 0), least * byteAt(word, 1));
    case FOUR_BITS:
      return { factors: [d * nibble(0), d * nibble(2)], minima: [least * nibble(1), least * nibble(3)] };
    case SIGNED_BYTES: {
      const factors = [0, 1].map((half) => (table ? Number(unit) : 1) * d * signed(byteAt(word, half), 8));
      return { factors, minima: factors.map((each) => -offset * each) };
    }
    default: {
      const [one, two, ...minima] = floats();
      return { factors: [one, two], minima };
    }
  }
}

/** A weight of a group of 32; `parts` finds words of the group, by the half that the weight is in. */
function inGroup(index, parts, defines) {
  const [half, word, byte] = [index >> 4, (index >> 2) & 3, index & 3];
  let number;
  if (defines.FORM_LOW === 8) {
    number = signed(byteAt(parts.low(word, half), byte), 8);
  } else {
    number = byteAt(parts.low(word, half) >>> (4 * half), byte) & 15;
    if (defines.FORM_HIGH === 1) number |= (byteAt(parts.high(half) >>> (4 * half + word), byte) & 1) << 4;
    if (defines.FORM_HIGH === 2) number |= (byteAt(parts.high(half) >>> (2 * word), byte) & 3) << 4;
    if (defines.FORM_TABLE) number = valueOf(number, defines);
  }
  const { factors, minima } = scalesOf(parts.scale(), parts.shared(), parts.floats, defines);
  return number * factors[half] + (defines.FORM_TABLE ? 0 : minima[half]);
}

const shortScales = ({ FORM_SCALES: kind }) => ![PAIR, FLOATS].includes(kind);
const sharedScales = ({ FORM_SCALES: kind }) => [SIX_BITS, FOUR_BITS, SIGNED_BYTES].includes(kind);

/** A weight in the lines of common/grouped.glsl, of which each has 32 outputs and four groups. */
function inLines({ values }, layout, defines, row, col) {
  const { line, lines_per_block: lines } = layout;
  const [group, output] = [(col >> 5) & 3, row & 3];
  const start = ((row >> 5) * (lines / 2) + (col >> 7)) * line + ((row & 31) >> 2);
  const texel = (number, channel = output) => values[4 * (start + 8 * number) + channel];
  const [wide, high] = [defines.FORM_LOW === 8, 4 * defines.FORM_LOW];
  const scales = high + 4 * defines.FORM_HIGH;
  const pair = () => texel(scales + (group >> 1), 2 * (group & 1) + (output >> 1)) >>> (16 * (output & 1));
  return inGroup(col & 31, {
    low: (word, half) => (wide ? texel(2 * (4 * word + group) + half) : texel(4 * word + group)),
    high: (half) => texel(high + (defines.FORM_HIGH === 2 ? 4 * half : 0) + group),
    scale: () => (shortScales(defines) ? pair() & 0xffff : texel(scales + group)),
    floats: () => [0, 1, 2, 3].map((index) => floatOf(texel(scales + 4 * index + group))),
    shared: () => (sharedScales(defines) ? texel(scales + 2) : 0),
  }, defines);
}

/** A weight in rows of blocks, see common/weights.glsl. */
function inRow({ values }, { row_texels: texels }, defines, row, col) {
  const word = (texel, channel) => values[4 * (row * texels + texel) + channel];
  const { FORMAT: format, HIGH_AT: high, SCALES_AT: scales, SHARED_AT: shared } = defines;
  if (format === ROW_Q8) return signed(byteAt(word(col >> 4, (col >> 2) & 3), col & 3), 8) * floatOf(word(scales, 0));
  const half = (word(col >> 3, (col >> 1) & 3) >>> (16 * (col & 1))) & 0xffff;
  if (format === ROW_BF16) return floatOf(half << 16);
  if (format === ROW_Q16) return signed(half, 16) * floatOf(word(scales, 0));
  const group = col >> 5;
  const pair = () => word(scales + (group >> 3), (group >> 1) & 3) >>> (16 * (group & 1));
  return inGroup(col & 31, {
    low: (index, part) => (defines.FORM_LOW === 8 ? word(2 * group + part, index) : word(group, index)),
    high: (part) => (defines.FORM_HIGH === 2 ? word(high + (group >> 1), 2 * (group & 1) + part) : word(high + (group >> 2), group & 3)),
    scale: () => (shortScales(defines) ? pair() & 0xffff : word(scales + (group >> 2), group & 3)),
    floats: () => [],
    shared: () => (sharedScales(defines) ? word(shared + (group >> 5), (group >> 3) & 3) : 0),
  }, defines);
}

/**
 * The weight of an output and an input.
 * @param {import("./recording.js").Texels} texels the whole texture.
 * @param {import("../glinfer/layouts.js").Layout} layout
 * @param {Record<string, any>} defines of the draw that reads it.
 * @param {(row: number, col: number) => number} element an element of the texture, which is a word.
 * @param {(row: number, group: number) => number} scale of integers, for the inputs i with (i div 4) mod 4 = group.
 * @returns {(row: number, col: number) => number}
 */
export function weightReader(texels, layout, defines, element, scale) {
  if (layout.kind === "groups") return (row, col) => inLines(texels, layout, defines, row, col);
  if (layout.kind === "flat" && defines.FORMAT) return (row, col) => inRow(texels, layout, defines, row, col);
  if (layout.kind !== "words" || layout.texels === 4) return element;
  const { WEIGHTS: kind } = defines;
  const bits = 8 * layout.texels;
  return (row, col) => {
    const [word, index] = [element(row, Math.floor((col * bits) / 32)), col % (32 / bits)];
    const shifted = word << (bits * index);
    if (kind === BF16) return floatOf(shifted & 0xffff0000);
    // The bits after a rounded integer count as fractions of it; a file's integers are masked.
    const number = kind === I16 || kind === I8 ? shifted & (-1 << (32 - bits)) : shifted;
    return number * scale(row, (col >> 2) & 3);
  };
}
