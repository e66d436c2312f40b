// @ts-check
/** Bytes of the KV cache: the formula from the model's shape, and what was measured. */

/** Numbers that one layer keeps of a position, as keys and as values. @param {import('./types.js').ModelFacts} model @param {number} layer */
export function keptNumbers(model, layer) {
  return {
    k: model.kv_heads[layer] * model.head_dims[layer],
    v: model.kv_heads[layer] * model.value_dims[layer],
  };
}

/** Bytes of one position's keys and values over all layers, by the formula. @param {import('./types.js').Begin} begin */
function positionBytes(begin) {
  const { model, cache } = begin;
  const numbers = model.heads.reduce((sum, _, layer) => {
    const { k, v } = keptNumbers(model, layer);
    return sum + k + v;
  }, 0);
  return numbers * cache.element_bytes;
}

/** Bytes of keys and values of `positions` tokens, by the formula. @param {import('./types.js').Begin} begin @param {number} positions */
export function formulaBytes(begin, positions) {
  return positionBytes(begin) * positions;
}

/** @param {number[]} values */
const same = (values) => values.every((x) => x === values[0]);

/** The formula with its numbers filled in; layers that keep nothing are left out. @param {import('./types.js').Begin} begin @param {number} positions */
export function formulaText(begin, positions) {
  const { model, cache } = begin;
  const keeping = model.kv_heads.flatMap((heads, layer) => (heads ? [layer] : []));
  const [heads, keys, values] = [model.kv_heads, model.head_dims, model.value_dims].map((all) =>
    keeping.map((layer) => all[layer]),
  );
  const rest = `${positions} positions × ${cache.element_bytes} B`;
  if (!same(heads) || !same(keys) || !same(values)) {
    const numbers = positionBytes(begin) / cache.element_bytes;
    return `${numbers} numbers in ${keeping.length} layers × ${rest}`;
  }
  const layers = `${keeping.length} layers × ${heads[0]} KV heads`;
  if (keys[0] !== values[0]) return `${layers} × (${keys[0]} K + ${values[0]} V) × ${rest}`;
  return `2 (K, V) × ${layers} × ${keys[0]} head size × ${rest}`;
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
