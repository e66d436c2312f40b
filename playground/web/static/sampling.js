// @ts-check
/**
 * The stages of sampling again, in the browser, so that a moved slider shows its effect at once.
 * Each stage equals the transformers processor of its name; a removed token has the logit -Infinity.
 * (playground/sampling.py is the same in Python; a test holds the two against each other.)
 */

/** @typedef {{name: string, setting: number|null, logits: Float64Array}} Applied */

/** Stages that change anything, in order; greedy has no filters. @param {import('./types.js').Settings} settings */
export function activeStages(settings) {
  const greedy = settings.temperature === 0;
  /** @type {Record<string, boolean>} */
  const neutral = {
    repetition_penalty: settings.repetition_penalty === 1,
    temperature: greedy || settings.temperature === 1,
    top_k: greedy || settings.top_k === 0,
    top_p: greedy || settings.top_p >= 1,
    min_p: greedy || settings.min_p === 0,
  };
  return settings.order.filter((name) => !neutral[name]);
}

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
};

/**
 * All stages in order, the raw logits first under the name `softmax`.
 * @param {ArrayLike<number>} raw @param {import('./types.js').Settings} settings
 * @param {Iterable<number>} seen indices into `raw` of tokens that stand in the text so far
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
