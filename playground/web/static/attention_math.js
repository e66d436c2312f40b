// @ts-check
/** Figures about attention rows, all from exact float32 rows unless a name says otherwise. */

/** Shannon entropy in nats. @param {ArrayLike<number>} pattern */
export function entropy(pattern) {
  let sum = 0;
  for (let i = 0; i < pattern.length; i++) if (pattern[i] > 0) sum -= pattern[i] * Math.log(pattern[i]);
  return sum;
}

/** @param {ArrayLike<number>} values */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** Indices of the largest values, largest first. @param {ArrayLike<number>} values @param {number} n */
export function strongest(values, n) {
  const order = Array.from({ length: values.length }, (_, i) => i);
  return order.sort((a, b) => values[b] - values[a]).slice(0, n);
}

const LOCAL_REACH = 4; // positions back that count as near

/**
 * Our own simple names for what heads do. Each has a test on the mean share of attention that
 * goes to a place, over the rows at hand; the first that holds names the head.
 */
export const KINDS = [
  { name: "previous token", means: "at least 40 % goes to the token just before the query" },
  { name: "first-token sink", means: "at least 50 % goes to the first token" },
  { name: "self", means: "at least 40 % stays on the query itself" },
  { name: "local", means: `at least 60 % stays within ${LOCAL_REACH} tokens of the query` },
  { name: "diffuse", means: "entropy is at least 75 % of its maximum, ln(keys)" },
  { name: "mixed", means: "none of the other kinds" },
];

/** @typedef {{rows: number, previous: number, first: number, self: number, near: number, spread: number}} Shares */

/** @param {(row: number, key: number) => number} at probability @param {Iterable<number>} rows @returns {Shares} */
export function shares(at, rows) {
  const sums = { rows: 0, previous: 0, first: 0, self: 0, near: 0, spread: 0 };
  for (const row of rows) {
    if (row < LOCAL_REACH) continue; // in the first rows every place is near, first and previous at once
    const pattern = Array.from({ length: row + 1 }, (_, key) => at(row, key));
    const total = pattern.reduce((a, b) => a + b, 0) || 1;
    sums.rows++;
    sums.previous += pattern[row - 1] / total;
    sums.first += pattern[0] / total;
    sums.self += pattern[row] / total;
    for (let key = Math.max(1, row - LOCAL_REACH); key <= row; key++) sums.near += pattern[key] / total;
    sums.spread += entropy(pattern.map((p) => p / total)) / Math.log(row + 1);
  }
  for (const place of /** @type {const} */ (["previous", "first", "self", "near", "spread"]))
    sums[place] /= Math.max(1, sums.rows);
  return sums;
}

/** @param {Shares} share @returns {typeof KINDS[0]|null} null: too few rows to say */
export function headKind(share) {
  if (!share.rows) return null;
  const tests = [
    share.previous >= 0.4,
    share.first >= 0.5,
    share.self >= 0.4,
    share.near >= 0.6,
    share.spread >= 0.75,
    true,
  ];
  return KINDS[tests.indexOf(true)];
}
