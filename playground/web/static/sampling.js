// @ts-check
/**
 * The stages of sampling again, in the browser, so that a moved slider shows its effect at once.
 * Each stage equals the transformers processor of its name; a removed token has the logit -Infinity.
 * (playground/sampling.py is the same in Python; a test holds the two against each other.)
 */

/** @typedef {{name: string, setting: number|null, logits: Float64Array}} Applied */

/** Settings with which a stage does nothing, where that is not 0 or an empty list. @type {Record<string, number>} */
const NEUTRAL = { temperature: 1, repetition_penalty: 1, top_p: 1, typical_p: 1, tfs_z: 1 };
const FILTERS = new Set(
  "temperature dynatemp_range top_k top_p min_p typical_p epsilon_cutoff eta_cutoff top_n_sigma tfs_z xtc_probability mirostat".split(
    " ",
  ),
);

/** When a stage does nothing although its own setting is not neutral. @type {Record<string, (settings: any) => boolean>} */
const OFF = {
  temperature: (settings) => settings.dynatemp_range > 0,
  xtc_probability: (settings) => settings.xtc_threshold > 0.5,
  repetition_penalty: (settings) => settings.penalty_last_n === 0,
  frequency_penalty: (settings) => settings.penalty_last_n === 0,
  presence_penalty: (settings) => settings.penalty_last_n === 0,
  dry_multiplier: (settings) => settings.dry_penalty_last_n === 0,
};

/** Stages that change anything, in order; greedy has no filters. @param {import('./types.js').Settings} settings */
export function activeStages(settings) {
  const greedy = settings.temperature === 0;
  return settings.order.filter((name) => {
    const value = /** @type {any} */ (settings)[name];
    if (value === undefined || (Array.isArray(value) ? !value.length : value === (NEUTRAL[name] ?? 0))) return false;
    return !(greedy && FILTERS.has(name)) && !OFF[name]?.(settings);
  });
}

/** The first active stage that this page cannot compute, or null. @param {import('./types.js').Settings} settings */
export const foreignStage = (settings) => activeStages(settings).find((name) => !(name in STAGES)) ?? null;

/** The last n of the ids, all for -1: what the penalties look at. @param {number[]} ids @param {number|undefined} lastN */
export const recent = (ids, lastN) =>
  lastN === undefined || lastN < 0 ? ids : ids.slice(Math.max(0, ids.length - lastN));

/** Divide positive and multiply negative logits of tokens seen before. @param {Float64Array} logits @param {number} penalty @param {Iterable<number>} seen indices */
export function repetitionPenalty(logits, penalty, seen) {
  const out = logits.slice();
  for (const i of new Set(seen)) out[i] = logits[i] < 0 ? logits[i] * penalty : logits[i] / penalty;
  return out;
}

/** @param {Float64Array} logits @param {number} temperature not 0 */
export const divide = (logits, temperature) => logits.map((x) => x / temperature);

/** Keep the k largest; ties with the k-th stay. @param {Float64Array} logits @param {number} k */
export function topK(logits, k) {
  if (k >= logits.length) return logits.slice();
  const smallest = logits.slice().sort()[logits.length - k];
  return logits.map((x) => (x < smallest ? -Infinity : x));
}

/** Keep the smallest set of most likely tokens whose mass reaches p, at least one. @param {Float64Array} logits @param {number} p */
export function topP(logits, p) {
  const ascending = logits.slice().sort(); // sorting plain values is many times faster than sorting indices
  const probabilities = softmax(ascending);
  let removed = 0;
  let mass = probabilities[0];
  while (removed < ascending.length - 1 && mass <= 1 - p) mass += probabilities[++removed];
  const border = ascending[removed];
  let ties = removed - ascending.indexOf(border); // equals of the border that go, lowest ids first
  return logits.map((x) => (x < border || (x === border && ties-- > 0) ? -Infinity : x));
}

/** Remove what is less than min_p times as likely as the most likely. @param {Float64Array} logits @param {number} share */
export function minP(logits, share) {
  const probabilities = softmax(logits);
  const best = largest(probabilities);
  return logits.map((x, i) => (i !== best && probabilities[i] < share * probabilities[best] ? -Infinity : x));
}

/** Subtract the penalty for each time that a token was seen, or once. @param {Float64Array} logits @param {number} penalty @param {Iterable<number>} seen */
export function subtract(logits, penalty, seen) {
  const out = logits.slice();
  for (const i of seen) out[i] -= penalty;
  return out;
}

/** @param {Float64Array} logits @param {(i: number) => boolean} goes */
const without = (logits, goes) => logits.map((x, i) => (goes(i) ? -Infinity : x));

/** Entropy in nats. @param {Float64Array} probabilities */
const entropyOf = (probabilities) => probabilities.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0);

/** Keep the tokens whose surprisal is nearest to the entropy, until their mass reaches p. @param {Float64Array} logits @param {number} p */
export function typicalP(logits, p) {
  const probabilities = softmax(logits);
  const entropy = entropyOf(probabilities);
  const distance = probabilities.map((q) => Math.abs(-Math.log(q) - entropy));
  const order = Uint32Array.from(distance.keys()).sort((a, b) => distance[a] - distance[b] || a - b);
  let last = 0;
  for (let mass = probabilities[order[0]]; mass < p && last < order.length - 1; mass += probabilities[order[last]])
    last++;
  return without(logits, (i) => distance[i] > distance[order[last]]);
}

/** Remove what is less likely than the limit, but never the most likely. @param {Float64Array} logits @param {number} limit */
export function cutBelow(logits, limit) {
  const probabilities = softmax(logits);
  const high = logits[largest(logits)];
  return without(logits, (i) => probabilities[i] < limit && logits[i] < high);
}

/** @param {Float64Array} logits @param {number} epsilon */
export const cutEta = (logits, epsilon) =>
  cutBelow(logits, Math.min(epsilon, Math.sqrt(epsilon) * Math.exp(-entropyOf(softmax(logits)))));

/** Remove what lies more than n standard deviations below the largest. @param {Float64Array} logits @param {number} n */
export function topNSigma(logits, n) {
  const alive = logits.filter((x) => x > -Infinity);
  const mean = alive.reduce((sum, x) => sum + x, 0) / alive.length;
  const sigma = Math.sqrt(alive.reduce((sum, x) => sum + (x - mean) ** 2, 0) / alive.length);
  const border = logits[largest(logits)] - n * sigma;
  return without(logits, (i) => logits[i] < border);
}

/** Cut the tail where the sorted probabilities have stopped bending. @param {Float64Array} logits @param {number} z */
export function tailFree(logits, z) {
  const sorted = logits
    .filter((x) => x > -Infinity)
    .sort()
    .reverse();
  const p = softmax(sorted);
  const bends = Array.from(p.subarray(2), (q, i) => Math.abs(p[i] - 2 * p[i + 1] + q));
  const total = bends.reduce((sum, x) => sum + x, 0);
  let [spent, count] = [0, 0];
  for (; count < bends.length && spent <= z; count++) spent += total > 1e-6 ? bends[count] / total : 1 / bends.length;
  if (spent <= z) return logits.slice();
  const kept = Math.max(1, count - 1);
  const border = sorted[kept - 1];
  let ties = kept - sorted.indexOf(border); // equals of the border that stay, lowest ids first
  return without(logits, (i) => logits[i] < border || (logits[i] === border && ties-- <= 0));
}

/** @param {Float64Array} logits @returns {Float64Array} */
export function softmax(logits) {
  const high = logits[largest(logits)];
  const out = logits.map((x) => Math.exp(x - high));
  let sum = 0;
  for (let i = 0; i < out.length; i++) sum += out[i];
  for (let i = 0; i < out.length; i++) out[i] /= sum;
  return out;
}

/** Index of the maximum. @param {Float64Array} values */
export function largest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** @type {Record<string, (logits: Float64Array, setting: number, seen: Iterable<number>) => Float64Array>} */
const STAGES = {
  repetition_penalty: (logits, setting, seen) => repetitionPenalty(logits, setting, seen),
  temperature: (logits, setting) => divide(logits, setting),
  top_k: (logits, setting) => topK(logits, setting),
  top_p: (logits, setting) => topP(logits, setting),
  min_p: (logits, setting) => minP(logits, setting),
  frequency_penalty: (logits, setting, seen) => subtract(logits, setting, seen),
  presence_penalty: (logits, setting, seen) => subtract(logits, setting, new Set(seen)),
  typical_p: (logits, setting) => typicalP(logits, setting),
  epsilon_cutoff: (logits, setting) => cutBelow(logits, setting),
  eta_cutoff: (logits, setting) => cutEta(logits, setting),
  top_n_sigma: (logits, setting) => topNSigma(logits, setting),
  tfs_z: (logits, setting) => tailFree(logits, setting),
};

/**
 * All stages in order, the raw logits first under the name `softmax`.
 * @param {ArrayLike<number>} raw @param {import('./types.js').Settings} settings
 * @param {Iterable<number>} seen indices into `raw` of the tokens that the penalties look at
 * @returns {Applied[]}
 */
export function applyStages(raw, settings, seen) {
  /** @type {Applied[]} */
  const applied = [{ name: "softmax", setting: null, logits: Float64Array.from(raw) }];
  for (const name of activeStages(settings)) {
    const setting = /** @type {any} */ (settings)[name];
    applied.push({ name, setting, logits: STAGES[name](applied[applied.length - 1].logits, setting, seen) });
  }
  return applied;
}

/**
 * What each stage kept: count, raw mass, entropy in nats, and the probabilities.
 * @param {Applied[]} applied
 * @returns {(import('./types.js').Stage & {probabilities: Float64Array})[]}
 */
export function describe(applied) {
  const raw = softmax(applied[0].logits);
  return applied.map(({ name, setting, logits }) => {
    const probabilities = softmax(logits);
    let [kept, mass, entropy] = [0, 0, 0];
    for (let i = 0; i < logits.length; i++) {
      if (logits[i] === -Infinity) continue;
      kept++;
      mass += raw[i];
      if (probabilities[i] > 0) entropy -= probabilities[i] * Math.log(probabilities[i]);
    }
    return { name, setting, kept, mass: Math.min(1, mass), entropy, probabilities };
  });
}

/** The token that a uniform number chooses: its slice of the cumulative distribution in order of ids. @param {Float64Array} probabilities @param {number} uniform */
export function draw(probabilities, uniform) {
  let total = 0;
  let last = 0;
  for (let i = 0; i < probabilities.length; i++) {
    total += probabilities[i];
    if (probabilities[i] > 0) last = i;
  }
  let sum = 0;
  for (let i = 0; i < probabilities.length; i++) {
    sum += probabilities[i];
    if (sum > total * uniform) return i;
  }
  return last;
}
