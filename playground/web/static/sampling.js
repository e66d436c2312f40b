// @ts-check
/**
 * The stages of sampling again, in the browser, so that a moved slider shows its effect at once.
 * Each stage equals the transformers processor of its name; a removed token has the logit -Infinity.
 * (playground/sampling.py is the same in Python; a test holds the two against each other.)
 */

import * as text from "./penalties.js";

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

/** A stage that cannot be computed for a step: XTC, where the run threw no random number for it. @param {import('./types.js').Settings} settings @param {{chance: number|null}} step */
export const foreignStage = (settings, { chance }) =>
  chance === null ? (activeStages(settings).find((name) => name === "xtc_probability") ?? null) : null;

/** Settings that a stage reads besides its own. @type {Record<string, string[]>} */
const READS = {
  dynatemp_range: ["temperature", "dynatemp_exponent"],
  xtc_probability: ["xtc_threshold"],
  mirostat: ["mirostat_tau", "mirostat_eta"],
  repetition_penalty: ["penalty_last_n"],
  frequency_penalty: ["penalty_last_n"],
  presence_penalty: ["penalty_last_n"],
  dry_multiplier: ["dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"],
};

/** @param {unknown} value without the dust of binary fractions */
const clean = (value) => (typeof value === "number" ? Number(value.toFixed(6)) : value);

/** All that decides what settings do, as text: equal for settings that do the same. @param {import('./types.js').Settings} settings */
export function meaning(settings) {
  const all = /** @type {Record<string, unknown>} */ (settings);
  const stages = activeStages(settings).map((name) => [
    name,
    ...[name, ...(READS[name] ?? [])].map((n) => clean(all[n])),
  ]);
  return JSON.stringify([settings.temperature === 0, ...stages]);
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
  return keepMostLikely(logits, sorted, Math.max(1, count - 1));
}

/** XTC: of the tokens at least this likely keep only the least likely, the last of equals. @param {Float64Array} logits @param {number} threshold */
export function excludeTopChoices(logits, threshold) {
  const probabilities = softmax(logits);
  const above = (/** @type {number} */ i) => logits[i] > -Infinity && probabilities[i] >= threshold;
  let spared = -1;
  for (let i = 0; i < logits.length; i++) {
    if (above(i) && (spared < 0 || probabilities[i] <= probabilities[spared])) spared = i;
  }
  return without(logits, (i) => i !== spared && above(i));
}

/** A temperature that follows the entropy. @param {Float64Array} logits @param {number} temperature @param {number} spread @param {number} exponent */
export function dynamicTemperature(logits, temperature, spread, exponent) {
  const alive = logits.reduce((sum, x) => sum + Number(x > -Infinity), 0);
  if (alive < 2) return logits.slice();
  const share = Math.min(1, Math.max(0, entropyOf(softmax(logits)) / Math.log(alive)));
  const [low, high] = [Math.max(0, temperature - spread), temperature + spread];
  return divide(logits, Math.max(1e-6, low + (high - low) * share ** exponent));
}

/** Mirostat 2: remove what is more surprising than so many bits, never the most likely. @param {Float64Array} logits @param {number} mu */
export function keepSurprise(logits, mu) {
  const probabilities = softmax(logits);
  const best = largest(logits);
  return without(logits, (i) => i !== best && -Math.log2(probabilities[i]) > mu);
}

const ZIPF_TOKENS = 100;

/** Mirostat 1: keep so many of the most likely that the surprise is in reach under Zipf's law. @param {Float64Array} logits @param {number} mu @param {number} vocabulary */
export function keepZipf(logits, mu, vocabulary) {
  const probabilities = softmax(logits);
  const sorted = logits
    .filter((x) => x > -Infinity)
    .sort()
    .reverse();
  if (sorted.length < 2) return logits.slice();
  const top = probabilities
    .filter((_, i) => logits[i] > -Infinity)
    .sort()
    .reverse()
    .subarray(0, ZIPF_TOKENS);
  const kept = zipfSize(top, mu, vocabulary);
  if (kept >= sorted.length) return logits.slice();
  return keepMostLikely(logits, sorted, kept);
}

/** @param {Float64Array} top probabilities, descending @param {number} mu @param {number} vocabulary */
function zipfSize(top, mu, vocabulary) {
  let [rise, run] = [0, 0];
  for (let i = 1; i < top.length; i++) {
    const step = Math.log((i + 1) / i);
    rise += step * (Math.log(Math.max(top[i - 1], 1.1754944e-38)) - Math.log(Math.max(top[i], 1.1754944e-38)));
    run += step * step;
  }
  const exponent = Math.max(rise / run, 1e-9);
  const [epsilon, logV] = [exponent - 1, Math.log(vocabulary)];
  const ratio = Math.abs(epsilon * logV) < 1e-9 ? 1 / logV : epsilon / -Math.expm1(-epsilon * logV);
  const logK = (mu * Math.LN2 + Math.log(ratio)) / exponent;
  return logK >= logV ? vocabulary : Math.max(1, Math.floor(Math.exp(logK)));
}

/** Exactly so many tokens, among equals the lowest ids. @param {Float64Array} logits @param {Float64Array} sorted descending @param {number} kept */
function keepMostLikely(logits, sorted, kept) {
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

/** @typedef {import('./penalties.js').Context} Context */

/** @type {Record<string, (logits: Float64Array, settings: Record<string, any>, context: Context) => Float64Array>} */
const STAGES = {
  sequence_bias: text.sequenceBias,
  repetition_penalty: text.repetitionPenalty,
  frequency_penalty: text.frequencyPenalty,
  presence_penalty: text.presencePenalty,
  dry_multiplier: text.dry,
  no_repeat_ngram_size: text.forbidRepeats,
  bad_words_ids: text.banWords,
  min_new_tokens: text.delayEnd,
  force_words_ids: text.forceWords,
  temperature: (x, settings) => divide(x, settings.temperature),
  dynatemp_range: (x, { temperature, dynatemp_range: range, dynatemp_exponent: exponent }) =>
    dynamicTemperature(x, temperature, range, exponent),
  top_k: (x, settings) => topK(x, settings.top_k),
  top_p: (x, settings) => topP(x, settings.top_p),
  min_p: (x, settings) => minP(x, settings.min_p),
  typical_p: (x, settings) => typicalP(x, settings.typical_p),
  epsilon_cutoff: (x, settings) => cutBelow(x, settings.epsilon_cutoff),
  eta_cutoff: (x, settings) => cutEta(x, settings.eta_cutoff),
  top_n_sigma: (x, settings) => topNSigma(x, settings.top_n_sigma),
  tfs_z: (x, settings) => tailFree(x, settings.tfs_z),
  xtc_probability: (x, settings, { chance }) =>
    chance !== null && chance <= settings.xtc_probability ? excludeTopChoices(x, settings.xtc_threshold) : x,
  mirostat: (x, { mirostat, mirostat_tau: tau }, { mu }) =>
    mirostat === 1 ? keepZipf(x, mu ?? 2 * tau, x.length) : keepSurprise(x, mu ?? 2 * tau),
};

/**
 * All stages in order, the raw logits first under the name `softmax`.
 * @param {ArrayLike<number>} raw @param {import('./types.js').Settings} settings
 * @param {Partial<Context>} known of the step
 * @returns {Applied[]}
 */
export function applyStages(raw, settings, known) {
  const context = text.contextOf(known);
  /** @type {Applied[]} */
  const applied = [{ name: "softmax", setting: null, logits: Float64Array.from(raw) }];
  for (const name of activeStages(settings)) {
    const value = /** @type {any} */ (settings)[name];
    const setting = Array.isArray(value) ? value.length : value;
    applied.push({ name, setting, logits: STAGES[name](applied[applied.length - 1].logits, settings, context) });
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
