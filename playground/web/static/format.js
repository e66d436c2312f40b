// @ts-check
/** Numbers and tokens as people read them: the unit always stands beside the number. */

const THOUSANDS = new Intl.NumberFormat("en-US");
export const SPACE = "\u00a0"; // no-break, between number and unit

/** 0..1 as percent, about three digits. @param {number} p */
export function percent(p) {
  if (!Number.isFinite(p)) return "–";
  const x = p * 100;
  if (p > 0 && x < 0.01) return `<0.01${SPACE}%`;
  if (p < 1 && x >= 99.95) return `>99.9${SPACE}%`;
  const digits = x >= 99.95 ? 0 : x >= 10 ? 1 : 2;
  return `${x === 0 ? "0" : x.toFixed(digits)}${SPACE}%`;
}

/** @param {number} size in bytes */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = size;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  const digits = unit === 0 || Number.isInteger(value) || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${SPACE}${units[unit]}`;
}

/** With thousands marked. @param {number} n */
export const count = (n) => THOUSANDS.format(n);

/** @param {number} time in seconds */
export function seconds(time) {
  if (!Number.isFinite(time)) return "–";
  if (time < 0.0995) return `${(time * 1000).toFixed(1)}${SPACE}ms`;
  if (time < 1) return `${(time * 1000).toFixed(0)}${SPACE}ms`;
  return `${time.toFixed(2)}${SPACE}s`;
}

/** @param {number} x */
export const nats = (x) => `${x.toFixed(2)}${SPACE}nats`;

/** With a real minus sign, so that columns line up. @param {number} x @param {number} [digits] */
export function signed(x, digits = 2) {
  const text = Math.abs(x).toFixed(digits);
  return Number(text) === 0 ? text : (x < 0 ? "−" : "+") + text;
}

/** @param {number} x @param {number} [digits] */
export const plain = (x, digits = 2) => (x < 0 ? "−" : "") + Math.abs(x).toFixed(digits);

/** As exact as float32 is. @param {number} x */
export const exact = (x) => (x === 0 ? "0" : String(Number(x.toPrecision(7))));

/** Ordinary singular and plural. @param {number} n @param {string} word @param {string} [many] */
export const plural = (n, word, many = `${word}s`) => `${count(n)} ${n === 1 ? word : many}`;

/**
 * A token with its invisible characters shown: a leading space as ·, a line break as ↵, others by code.
 * @param {string} text
 */
export function visible(text) {
  if (text === "") return "∅";
  let out = "";
  for (const char of text) out += visibleChar(char);
  return out;
}

/** @param {string} char */
function visibleChar(char) {
  if (char === " ") return "·";
  if (char === "\n") return "↵";
  if (char === "\t") return "⇥";
  const code = /** @type {number} */ (char.codePointAt(0));
  const hidden = code < 32 || (code >= 127 && code < 160) || (code >= 0x200b && code <= 0x200f);
  if (hidden || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code === 0xfeff) {
    return `⟨${code.toString(16).toUpperCase()}⟩`;
  }
  return char;
}

/** A token in a sentence. @param {string} text */
export const quote = (text) => `“${visible(text)}”`;

/** A round axis end at or above n: powers of two, and one step between them. @param {number} n @param {number} [least] */
export function axisEnd(n, least = 16) {
  let end = least;
  while (end < n) end = end * 1.5 >= n && end * 1.5 === Math.floor(end * 1.5) ? end * 1.5 : end * 2;
  return end;
}
