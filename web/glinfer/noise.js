/**
 * Random numbers from (seed, step, token) without any state: glinfer/kernels/noise.py, bit for bit, so that equal seeds
 * choose equal tokens in both. 32-bit integers with wrap-around; float32 rounding after every operation.
 */

const START = 0x9e3779b9;
// The float32 just below sqrt(1/2), as an integer: larger mantissas go to the next power of two.
const ROOT_HALF = 0x3f3504f3;
const LOG_SERIES = [
  7.0376836292e-2, -1.151461031e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
  2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
].map(Math.fround);
const f32 = Math.fround;
const floats = new Float32Array(1);
const bits = new Int32Array(floats.buffer);

function mix(h) {
  h ^= h >>> 16;
  h = Math.imul(h, 0x7feb352d);
  h ^= h >>> 15;
  h = Math.imul(h, 0x846ca68b);
  return (h ^ (h >>> 16)) >>> 0;
}

/**
 * The number that names the noise of one step.
 * @param {number|bigint} seed an integer of at least 0.
 * @param {number} step how many tokens were chosen before.
 * @returns {number} from 0 to 2**32 - 1.
 */
export function noiseKey(seed, step) {
  let rest = BigInt(seed);
  let low = START;
  let high = START;
  do {
    low = mix(low ^ Number(rest & 0xffffffffn));
    high = mix((high + low) | 0);
    rest >>= 32n;
  } while (rest);
  return mix(mix((step + low) | 0) ^ high);
}

/**
 * Standard Gumbel noise of one token: adding it to the logits and taking the largest draws from their softmax.
 * @param {number} key from `noiseKey`.
 * @param {number} token
 * @returns {number} a float32 from -2.9 to 16.7.
 */
export function gumbelAt(key, token) {
  const random = mix(mix(token) ^ key);
  const u = f32(f32(random >>> 9) + 0.5) * 2 ** -23;
  return -naturalLog(-naturalLog(u));
}

/** `logf` of Moshier's Cephes library, of a normal positive number. */
function naturalLog(x) {
  floats[0] = x;
  const exponent = (bits[0] - ROOT_HALF) >> 23;
  bits[0] -= exponent << 23;
  const f = f32(floats[0] - 1);
  const z = f32(f * f);
  let p = LOG_SERIES[0];
  for (const factor of LOG_SERIES.slice(1)) p = f32(f32(p * f) + factor);
  p = f32(f32(p * f) * z);
  p = f32(p - f32(f32(2.12194440e-4) * exponent));
  p = f32(p - f32(0.5 * z));
  return f32(f32(f + p) + f32(0.693359375 * exponent));
}
