// @ts-check
/**
 * What each stage did, from the logits on either side of it: playground/waterfall.py is the same in Python, for what
 * really happened; this is for what other settings would do.
 *
 * @typedef {{id: number, from: number, to: number, before: number, after: number}} Move  ranks from 1, 0: removed
 * @typedef {{count: number, ids: number[]}} Lost  the most likely of the removed by name
 * @typedef {{ids: number[], starts: number[], sizes: number[], count: number, uniform: number}} Slices  in order of ids
 * @typedef {{moves: Move[], lost: Lost}} Fallen
 * @typedef {{stages: Fallen[], slices: Slices|null}} Fall
 */
import { softmax } from "./sampling.js";

const MOVES = 10;
const NAMED = 5;
const SLICES = 32;

/** @param {{logits: Float64Array}[]} applied stages @param {number[]} must ids that are always told @param {number|null} uniform @returns {Fall} */
export function fallOf(applied, must, uniform) {
  const chances = applied.map(({ logits }) => softmax(logits));
  const stages = applied.map(({ logits }, at) => {
    const from = Math.max(0, at - 1);
    return stageOf(applied[from].logits, logits, chances[from], chances[at], must);
  });
  return { stages, slices: uniform === null ? null : slicesOf(chances[chances.length - 1], uniform, must) };
}

/** @param {Float64Array} before @param {Float64Array} after @param {Float64Array} pBefore @param {Float64Array} pAfter @param {number[]} must @returns {Fallen} */
function stageOf(before, after, pBefore, pAfter, must) {
  const gone = before.map((x, i) => (after[i] === -Infinity ? x : -Infinity));
  const named = top(gone, NAMED);
  const ids = [...new Set([...top(before, MOVES), ...top(after, MOVES), ...named, ...must])];
  return {
    moves: ids.map((id) => ({
      id,
      from: rank(before, id),
      to: rank(after, id),
      before: pBefore[id],
      after: pAfter[id],
    })),
    lost: { count: gone.reduce((sum, x) => sum + Number(x > -Infinity), 0), ids: named },
  };
}

/** Ids of the largest, among equals the lowest first. @param {Float64Array} values @param {number} count */
function top(values, count) {
  const least = values.slice().sort()[Math.max(0, values.length - count)];
  /** @type {number[]} */
  const ids = [];
  for (let i = 0; i < values.length; i++) if (values[i] >= least && values[i] > -Infinity) ids.push(i);
  return ids.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/** 1 for the most likely, equals alike; 0 for a removed token. @param {Float64Array} logits @param {number} id */
function rank(logits, id) {
  if (logits[id] === -Infinity) return 0;
  let larger = 0;
  for (let i = 0; i < logits.length; i++) if (logits[i] > logits[id]) larger++;
  return larger + 1;
}

/** The cumulative distribution in order of ids, the order in which it is drawn from. @param {Float64Array} p @param {number} uniform @param {number[]} must @returns {Slices} */
function slicesOf(p, uniform, must) {
  const shown = new Set([...top(p, SLICES), ...must]);
  const total = p.reduce((sum, x) => sum + x, 0);
  const slices = { ids: [], starts: [], sizes: [], count: 0, uniform };
  let sum = 0;
  for (let id = 0; id < p.length; id++) {
    if (p[id] === 0) continue;
    slices.count++;
    if (shown.has(id)) {
      /** @type {number[]} */ (slices.ids).push(id);
      /** @type {number[]} */ (slices.starts).push(sum / total);
      /** @type {number[]} */ (slices.sizes).push(p[id] / total);
    }
    sum += p[id];
  }
  return slices;
}

/** The stage of greedy decoding: all go but one. @param {Fallen} before the last stage @param {number} id the token that is taken @param {number} kept tokens left before @returns {Fallen} */
export function greedyFallen(before, id, kept) {
  const moves = before.moves
    .filter(({ to }) => to > 0)
    .map((move) => {
      const taken = move.id === id;
      return { id: move.id, from: move.to, to: Number(taken), before: move.after, after: Number(taken) };
    });
  const gone = moves.filter(({ to }) => !to).slice(0, NAMED);
  return { moves, lost: { count: kept - 1, ids: gone.map((move) => move.id) } };
}
