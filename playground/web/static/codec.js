// @ts-check
/** Base64 of little-endian numbers, as the frames carry them. */

/** @param {string} text @returns {Uint8Array} */
export function u8(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

/** @param {string} text @returns {Float32Array} */
export const f32 = (text) => new Float32Array(u8(text).buffer);

/** @param {string} text @returns {Uint32Array} */
export const u32 = (text) => new Uint32Array(u8(text).buffer);

/** @param {string} text @returns {Float64Array} */
export const f64 = (text) => new Float64Array(u8(text).buffer);
