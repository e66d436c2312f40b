// @ts-check
/**
 * The stages of sampling that look at the text so far, again in the browser: playground/penalties.py is the same in
 * Python, and a test holds the two against each other. Each takes logits and returns new ones; a removed token has
 * -Infinity, and none of them removes all.
 */

/**
 * What a stage may know of a step besides its logits.
 * @typedef {{
 *   ids: number[], prompt: number, room: number, ends: number[], chance: number|null, mu: number|null,
 *   text: (id: number) => string, place: (id: number) => number|undefined,
 * }} Context  `ids`: all tokens before the step's; `prompt`: how many of them are the prompt; `room`: tokens that may still
 * be drawn; `ends`: tokens that end the text; `chance`: whether XTC acts; `mu`: bits that mirostat allows; `place`: where a
 * token stands among the logits, undefined where it is not known
 */

/** @typedef {Record<string, any>} Settings */

/** @param {Partial<Context>} known @returns {Context} */
export const contextOf = (known) => ({
  ids: [],
  prompt: 0,
  room: Infinity,
  ends: [],
  chance: null,
  mu: null,
  text: (id) => `#${id}`,
  place: (id) => id,
  ...known,
});

/** The last n of the ids, all for -1: what the penalties look at. @param {number[]} ids @param {number|undefined} lastN */
export const recent = (ids, lastN) =>
  lastN === undefined || lastN < 0 ? ids : ids.slice(Math.max(0, ids.length - lastN));

/** Places of the tokens seen lately, as often as they were seen. @param {Context} context @param {Settings} settings */
function seen({ ids, place }, settings) {
  return recent(ids, settings.penalty_last_n).flatMap((id) => place(id) ?? []);
}

/** Divide positive and multiply negative logits of tokens seen before. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export function repetitionPenalty(logits, settings, context) {
  const out = logits.slice();
  const penalty = settings.repetition_penalty;
  for (const i of new Set(seen(context, settings))) out[i] = logits[i] < 0 ? logits[i] * penalty : logits[i] / penalty;
  return out;
}

/** Subtract for each time that a token was seen. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export const frequencyPenalty = (logits, settings, context) =>
  subtract(logits, settings.frequency_penalty, seen(context, settings));

/** Subtract once. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export const presencePenalty = (logits, settings, context) =>
  subtract(logits, settings.presence_penalty, new Set(seen(context, settings)));

/** @param {Float64Array} logits @param {number} penalty @param {Iterable<number>} places */
function subtract(logits, penalty, places) {
  const out = logits.slice();
  for (const i of places) out[i] -= penalty;
  return out;
}

/** Remove these tokens, unless nothing would be left. @param {Float64Array} logits @param {Iterable<number>} ids @param {Context} context */
function without(logits, ids, { place }) {
  const out = logits.slice();
  for (const id of ids) {
    const i = place(id);
    if (i !== undefined) out[i] = -Infinity;
  }
  return out.some((x) => x > -Infinity) ? out : logits;
}

/** Whether the text ends with all of a word but its last token. @param {number[]} word @param {number[]} ids */
const completes = (word, ids) => {
  const start = ids.length - word.length + 1;
  return start >= 0 && word.slice(0, -1).every((id, i) => ids[start + i] === id);
};

/** Add a bias to each token that completes a sequence. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export function sequenceBias(logits, settings, { ids, place }) {
  const out = logits.slice();
  const table = new Map(settings.sequence_bias.map((/** @type {[number[], number]} */ pair) => [pair[0].join(), pair]));
  for (const [word, bias] of table.values()) {
    const i = place(word[word.length - 1]);
    if (i !== undefined && completes(word, ids)) out[i] += bias;
  }
  return out;
}

/** Remove each token that would complete a banned word. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export function banWords(logits, settings, context) {
  const due = settings.bad_words_ids.filter((/** @type {number[]} */ word) => completes(word, context.ids));
  return without(
    logits,
    due.map((/** @type {number[]} */ word) => word[word.length - 1]),
    context,
  );
}

/** Remove what would repeat a run of tokens. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export function forbidRepeats(logits, settings, context) {
  const { ids } = context;
  const before = settings.no_repeat_ngram_size - 1;
  const ending = ids.slice(ids.length - before);
  const gone = ids.filter((_, at) => at >= before && ending.every((id, i) => ids[at - before + i] === id));
  return ids.length > before ? without(logits, gone, context) : logits;
}

/** No end before so many tokens. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export function delayEnd(logits, settings, context) {
  const drawn = context.ids.length - context.prompt;
  return drawn < settings.min_new_tokens ? without(logits, context.ends, context) : logits;
}

/** @param {number[]} ids @param {number[]} word */
const contains = (ids, word) => ids.some((_, at) => word.every((id, i) => ids[at + i] === id));

/** See to it that every word stands in the continuation. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export function forceWords(logits, settings, context) {
  const fresh = context.ids.slice(context.prompt);
  /** @type {number[][]} */
  const missing = settings.force_words_ids.filter((/** @type {number[]} */ word) => !contains(fresh, word));
  if (!missing.length) return logits;
  if (context.room > missing.reduce((sum, word) => sum + word.length, 0)) return without(logits, context.ends, context);
  const [word] = missing;
  let begun = word.length - 1;
  while (begun > 0 && !word.slice(0, begun).every((id, i) => fresh[fresh.length - begun + i] === id)) begun--;
  const i = context.place(word[begun]);
  const out = logits.map(() => -Infinity);
  if (i !== undefined) out[i] = logits[i] > -Infinity ? logits[i] : 0;
  return i === undefined ? logits : out;
}

/** DRY: subtract from what would prolong a repetition. @param {Float64Array} logits @param {Settings} settings @param {Context} context */
export function dry(logits, settings, context) {
  const ids = recent(context.ids, settings.dry_penalty_last_n);
  /** @type {string[]} */
  const breakers = settings.dry_sequence_breakers ?? [];
  const out = logits.slice();
  for (const [id, length] of repetitions(ids, sinceBreaker(ids, breakers, context.text))) {
    const i = context.place(id);
    const spared = breakers.some((each) => context.text(id).includes(each));
    if (i === undefined || spared || length < settings.dry_allowed_length) continue;
    out[i] -= Math.min(settings.dry_multiplier * settings.dry_base ** (length - settings.dry_allowed_length), 1e30);
  }
  return out;
}

/** For each token that once followed what the text ends with: the longest such ending. @param {number[]} ids @param {number} limit */
export function repetitions(ids, limit) {
  /** @type {Map<number, number>} */
  const found = new Map();
  for (let at = 1; at < ids.length; at++) {
    let n = 0;
    while (n < Math.min(at, limit) && ids[at - 1 - n] === ids[ids.length - 1 - n]) n++;
    if (n) found.set(ids[at], Math.max(found.get(ids[at]) ?? 0, n));
  }
  return found;
}

/** How many tokens follow the one in which the latest breaker ends. @param {number[]} ids @param {string[]} breakers @param {(id: number) => string} text */
function sinceBreaker(ids, breakers, text) {
  const pieces = ids.map(text);
  const whole = pieces.join("");
  const ends = breakers.map((each) => (whole.includes(each) ? whole.lastIndexOf(each) + each.length : 0));
  const end = Math.max(0, ...ends);
  if (!end) return ids.length;
  let start = 0;
  return pieces.filter((piece) => {
    start += piece.length;
    return start - piece.length >= end;
  }).length;
}
