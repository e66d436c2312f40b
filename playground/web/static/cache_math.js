// @ts-check
/** Bytes of the KV cache: the formula from the model's shape, and what was measured. */

/** Bytes of keys and values of `positions` tokens, by the formula. @param {import('./types.js').Begin} begin @param {number} positions */
export function formulaBytes(begin, positions) {
  const { kv_heads: heads, head_dims: dims } = begin.model;
  const numbers = heads.reduce((sum, count, layer) => sum + count * dims[layer], 0);
  return 2 * numbers * positions * begin.cache.element_bytes;
}

/** @param {number[]} values */
const same = (values) => values.every((x) => x === values[0]);

/** The formula with its numbers filled in. @param {import('./types.js').Begin} begin @param {number} positions */
export function formulaText(begin, positions) {
  const { kv_heads: heads, head_dims: dims } = begin.model;
  const regular = same(heads) && same(dims);
  const layers = regular
    ? `${heads.length} layers × ${heads[0]} KV heads × ${dims[0]} head size`
    : `${heads.reduce((sum, count, layer) => sum + count * dims[layer], 0)} numbers in ${heads.length} layers`;
  return `2 (K, V) × ${layers} × ${positions} positions × ${begin.cache.element_bytes} B`;
}

/** @param {number[]} values */
export const total = (values) => values.reduce((a, b) => a + b, 0);

/**
 * Measurements in bytes over all layers, as a line: points that lie straight between their neighbours are left out,
 * so that a long run is drawn as fast as a short one.
 */
export class GrowthLine {
  constructor() {
    /** @type {import('./types.js').CacheSize[]|null} */
    this.log = null;
    this.taken = 0; // entries of the log
    /** @type {{positions: number, k: number, v: number}[]} */
    this.points = [];
  }

  /** @param {import('./types.js').CacheSize[]} log oldest first, the same array while a run goes on */
  follow(log) {
    if (log !== this.log) Object.assign(this, { log, taken: 0, points: [] });
    for (; this.taken < log.length; this.taken++) {
      const { positions, k, v } = log[this.taken];
      this.add({ positions, k: total(k), v: total(v) });
    }
    return this.points;
  }

  /** @param {{positions: number, k: number, v: number}} point */
  add(point) {
    const [a, b] = [this.points.at(-2), this.points.at(-1)];
    const straight = (/** @type {'k'|'v'} */ which) =>
      a &&
      b &&
      (b[which] - a[which]) * (point.positions - a.positions) ===
        (point[which] - a[which]) * (b.positions - a.positions);
    if (straight("k") && straight("v")) this.points.pop();
    this.points.push(point);
  }
}

/**
 * The measurement at so many positions, else the nearest one: frames may carry several steps at once.
 * @param {import('./types.js').CacheSize[]} log oldest first @param {number} positions
 */
export function measuredAt(log, positions) {
  let best = log[0] || null;
  for (const entry of log)
    if (Math.abs(entry.positions - positions) < Math.abs(best.positions - positions)) best = entry;
  return best;
}

/** A round number of bytes at or above n: powers of two and one step between. @param {number} n */
export function byteEnd(n) {
  let end = 1024;
  while (end < n) end = end * 1.5 >= n ? end * 1.5 : end * 2;
  return end;
}
