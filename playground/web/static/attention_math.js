// @ts-check
/** Figures about attention rows, all from exact float32 rows unless a name says otherwise. */

/** Shannon entropy in nats. @param {ArrayLike<number>} pattern */
export function entropy(pattern) {
  let sum = 0;
  for (let i = 0; i < pattern.length; i++) if (pattern[i] > 0) sum -= pattern[i] * Math.log(pattern[i]);
  return sum;
}

/** Indices of the largest values, largest first. @param {ArrayLike<number>} values @param {number} n */
export function strongest(values, n) {
  const order = Array.from({ length: values.length }, (_, i) => i);
  return order.sort((a, b) => values[b] - values[a]).slice(0, n);
}

const PLACES = /** @type {const} */ (["previous", "first", "self", "near", "spread"]);
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

/** Where one row's attention goes, as shares of 1; null for the first rows, where all places coincide. @param {ArrayLike<number>} pattern @returns {Shares|null} */
export function rowShares(pattern) {
  const row = pattern.length - 1;
  if (row < LOCAL_REACH) return null;
  let total = 0;
  for (let key = 0; key <= row; key++) total += pattern[key];
  let near = 0;
  for (let key = Math.max(1, row - LOCAL_REACH); key <= row; key++) near += pattern[key];
  // of a picture the sum is not exactly 1: H(p/t) = H(p)/t + ln t
  const spread = (entropy(pattern) / total + Math.log(total)) / Math.log(row + 1);
  return {
    rows: 1,
    previous: pattern[row - 1] / total,
    first: pattern[0] / total,
    self: pattern[row] / total,
    near: near / total,
    spread,
  };
}

/** @param {(Shares|null)[]} rows @returns {Shares} their mean */
export function meanShares(rows) {
  const mean = { rows: 0, previous: 0, first: 0, self: 0, near: 0, spread: 0 };
  for (const share of rows) {
    if (!share) continue;
    for (const place of PLACES) mean[place] += share[place];
    mean.rows++;
  }
  for (const place of PLACES) mean[place] /= Math.max(1, mean.rows);
  return mean;
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
