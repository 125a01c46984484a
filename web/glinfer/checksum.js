/** CRC-32, as zlib and PNG have it: the checksum of each line of texels in an export. */

const POLYNOMIAL = 0xedb88320; // reversed: the lowest bit first

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ POLYNOMIAL : value >>> 1;
  return value;
});

/**
 * The CRC-32 of some bytes.
 * @param {Uint8Array} bytes
 * @param {number} before the CRC-32 of the bytes before them, if any.
 * @returns {number} from 0 to 2**32 - 1.
 */
export function crc32(bytes, before = 0) {
  let value = ~before;
  for (let index = 0; index < bytes.length; index++) value = (value >>> 8) ^ TABLE[(value ^ bytes[index]) & 0xff];
  return ~value >>> 0;
}
