// @ts-check
/** What the next-token panel shows of a step: what happened, or what other settings would have made of it. */
import { contextOf } from "./penalties.js";
import { applyStages, describe, draw, foreignStage, largest } from "./sampling.js";
import { fallOf, greedyFallen } from "./waterfall_math.js";

/**
 * @typedef {{
 *   id: number, raw: number, probabilities: number[], happened: number, removedBy: number, drawn: boolean, chosen: boolean,
 * }} Candidate  `probabilities` by stage; `happened`: what it was really drawn with; `removedBy`: index of a stage or -1;
 * `drawn`: the token of the text; `chosen`: the one that the same random number picks under the settings shown
 * @typedef {{
 *   stages: import('./types.js').Stage[], candidates: Candidate[], rest: {count: number, mass: number[]},
 *   whatIf: boolean, whole: boolean, chosen: number, foreign?: string, fall?: () => import('./waterfall_math.js').Fall,
 * }} Distribution  `rest`: everything that has no row, its mass by stage; `whole`: over the whole vocabulary; `foreign`: the
 * stage that keeps the page from re-cutting the step, which is then shown as it happened; `fall`: what each stage did
 */

/** @param {number[]} probabilities by stage @returns {number} */
const removedBy = (probabilities) => probabilities.findIndex((p, stage) => stage > 0 && p === 0);

/**
 * Greedy decoding as a last stage of its own: all but the most likely token go. The stages of sampling do not know it,
 * for nothing is drawn.
 * @param {number} mass raw probability of the token that is taken
 * @returns {import('./types.js').Stage}
 */
const greedyStage = (mass) => ({ name: "greedy", setting: null, kept: 1, mass, entropy: 0 });

/** As it happened, from the step's own record. @param {import('./types.js').ToldStep} step @param {number} vocabulary @returns {Distribution} */
export function happened(step, vocabulary) {
  const n = step.ids.length;
  const greedy = step.uniform === null && !step.forced;
  const stages = greedy ? [...step.stages, greedyStage(step.probabilities[step.ids.indexOf(step.id)])] : step.stages;
  const last = stages.length - 1;
  const candidates = Array.from(step.ids, (id, i) => {
    const drawn = id === step.id;
    const probabilities = step.stages.map((_, stage) => step.probabilities[stage * n + i]);
    if (greedy) probabilities.push(drawn ? 1 : 0);
    return {
      id,
      raw: probabilities[0],
      probabilities,
      happened: probabilities[last],
      removedBy: removedBy(probabilities),
      drawn,
      chosen: drawn,
    };
  });
  const rest = restOf(candidates, stages, vocabulary);
  return { stages, candidates, rest, whatIf: false, whole: true, chosen: step.id };
}

/** @param {Candidate[]} candidates @param {import('./types.js').Stage[]} stages @param {number} vocabulary */
function restOf(candidates, stages, vocabulary) {
  const mass = stages.map(({ kept }, stage) => {
    const alive = candidates.filter((c) => c.probabilities[stage] > 0);
    if (kept <= alive.length) return 0; // all that is left has a row: what rounding leaves over is nobody's
    return Math.max(0, 1 - alive.reduce((sum, c) => sum + c.probabilities[stage], 0));
  });
  return { count: Math.max(0, vocabulary - candidates.length), mass };
}

/**
 * The same step under other settings. With the whole vocabulary's logits it is exact; with the most likely ones alone
 * the rest counts as removed by every filter, and `whole` says so. With a stage that the step lacks a random number for,
 * it is what happened, and `foreign` names the stage.
 * @param {import('./types.js').ToldStep} step @param {import('./types.js').Settings} settings
 * @param {Partial<import('./penalties.js').Context>} known of the text before the step
 * @param {import('./types.js').Logits|null} logits @param {number} vocabulary @returns {Distribution}
 */
export function recut(step, settings, known, logits, vocabulary) {
  const context = contextOf({ ...known, chance: step.chance, mu: step.mu });
  const foreign = foreignStage(settings, context);
  if (foreign) return { ...happened(step, vocabulary), foreign };
  const whole = logits !== null && logits.ids === null;
  const raw = whole ? logits.logits : logits?.logits || step.logits;
  const ids = whole ? null : logits?.ids || step.ids;
  const place = new Map(ids ? Array.from(ids, (id, i) => /** @type {[number, number]} */ ([id, i])) : []);
  const indexOf = (/** @type {number} */ id) => (ids ? place.get(id) : id);
  const applied = applyStages(raw, settings, { ...context, place: indexOf });
  const stages = describe(applied);
  const mass = whole
    ? 1
    : Math.min(
        1,
        raw.reduce((sum, x) => sum + Math.exp(x - step.lse), 0),
      );
  const given = step.forced ? indexOf(step.id) : undefined; // nothing was drawn, and nothing would be
  const index = given ?? choose(stages[stages.length - 1].probabilities, step, settings);
  const chosen = ids ? ids[index] : index;
  if (settings.temperature === 0) stages.push(taken(stages[0].probabilities, index));
  const past = happened(step, vocabulary);
  const list = past.candidates.map((c) => again(c, stages, indexOf(c.id), mass, chosen));
  if (!list.some((c) => c.chosen)) list.push(newcomer(chosen, stages, indexOf(chosen), mass));
  if (!whole) for (const stage of stages) stage.mass *= mass;
  const fall = whole ? () => fallUnder(applied, step, chosen, stages, settings.temperature === 0) : undefined;
  const rest = restOf(list, stages, vocabulary);
  return { stages, candidates: list, rest, whatIf: true, whole, chosen, fall };
}

/** @param {import('./sampling.js').Applied[]} applied @param {import('./types.js').ToldStep} step @param {number} chosen @param {import('./types.js').Stage[]} stages @param {boolean} greedy */
function fallUnder(applied, step, chosen, stages, greedy) {
  const fall = fallOf(applied, [step.id, chosen], greedy ? null : step.uniform);
  return greedy ? greedyFall(fall, stages, chosen) : fall;
}

/** With the stage of greedy decoding at its end. @param {import('./waterfall_math.js').Fall} fall @param {import('./types.js').Stage[]} stages @param {number} chosen @returns {import('./waterfall_math.js').Fall} */
export const greedyFall = (fall, stages, chosen) => ({
  ...fall,
  stages: [...fall.stages, greedyFallen(fall.stages[fall.stages.length - 1], chosen, stages[stages.length - 2].kept)],
});

/** Index of the token that the step's own random number picks, or of the most likely. @param {Float64Array} probabilities @param {import('./types.js').ToldStep} step @param {import('./types.js').Settings} settings */
function choose(probabilities, step, settings) {
  if (settings.temperature === 0 || step.uniform === null) return largest(probabilities);
  return draw(probabilities, step.uniform);
}

/** The greedy stage over all tokens. @param {Float64Array} raw @param {number} index of the token that is taken */
function taken(raw, index) {
  const probabilities = new Float64Array(raw.length);
  probabilities[index] = 1;
  return { ...greedyStage(raw[index]), probabilities };
}

/**
 * @param {Candidate} candidate @param {{probabilities: Float64Array}[]} stages @param {number|undefined} index
 * @param {number} known raw mass that the stages were computed over @param {number} chosen @returns {Candidate}
 */
function again(candidate, stages, index, known, chosen) {
  const probabilities = stages.map((stage, i) =>
    index === undefined ? 0 : stage.probabilities[index] * (i === 0 ? known : 1),
  );
  return { ...candidate, probabilities, removedBy: removedBy(probabilities), chosen: candidate.id === chosen };
}

/** A token that only other settings bring into view. @param {number} id @param {{probabilities: Float64Array}[]} stages @param {number|undefined} index @param {number} known @returns {Candidate} */
function newcomer(id, stages, index, known) {
  const blank = { id, raw: 0, probabilities: [], happened: 0, removedBy: -1, drawn: false, chosen: true };
  const made = again(blank, stages, index, known, id);
  return { ...made, raw: made.probabilities[0] };
}
