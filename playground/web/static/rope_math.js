// @ts-check
/** Rotary embedding, pair by pair, from the rotated q and k of a run. */

/** A pair (x, y) turned back by the angle that (cos, sin) stand for. @param {number} x @param {number} y @param {number} c @param {number} s */
export function unrotate(x, y, c, s) {
  const norm = c * c + s * s || 1;
  return [(c * x + s * y) / norm, (c * y - s * x) / norm];
}

/** The query head's scale on scores: the model's own where it is told, else 1/sqrt(head size). @param {import('./types.js').ModelFacts} model @param {number} layer */
export function scoreScale(model, layer) {
  return model.scalings?.[layer] ?? 1 / Math.sqrt(model.head_dims[layer]);
}

/**
 * @typedef {{
 *   index: number, dims: number[], theta: number, q: number[], k: number[], qBefore: number[], kBefore: number[],
 *   qAngle: number, kAngle: number, share: number,
 * }} Pair  q and k are [x, y]; angles in radians; share: what the pair adds to the scaled score
 * @typedef {{pairs: Pair[], rest: number, score: number, scale: number}} Decomposition
 * `rest`: what the dimensions that do not rotate add.
 */

/**
 * Which frequency pairs make the score of one query and one key.
 * @param {import('./head_book.js').Head} head @param {import('./head_book.js').Rotation} angles @param {number} row @param {number} key
 * @param {import('./types.js').RopeTable} table @param {number} scale @returns {Decomposition|null}
 */
export function decompose(head, { cos, sin }, row, key, table, scale) {
  const q = head.exact.get(row)?.q;
  const k = head.key(row, key);
  if (!q || !k || Math.max(row, key) >= cos.count) return null;
  const angles = { qc: cos.row(row), qs: sin.row(row), kc: cos.row(key), ks: sin.row(key) };
  const pairs = table.pairs.map((dims, index) => onePair(index, dims, table.inv_freq[index], q, k, angles, scale));
  let score = 0;
  for (let d = 0; d < q.length; d++) score += q[d] * k[d];
  score *= scale;
  const rotating = pairs.reduce((sum, pair) => sum + pair.share, 0);
  return { pairs, rest: score - rotating, score, scale };
}

/**
 * @param {number} index @param {number[]} dims @param {number} theta @param {Float32Array} q @param {Float32Array} k
 * @param {{qc: Float32Array, qs: Float32Array, kc: Float32Array, ks: Float32Array}} at @param {number} scale @returns {Pair}
 */
function onePair(index, [i, j], theta, q, k, at, scale) {
  return {
    index,
    dims: [i, j],
    theta,
    q: [q[i], q[j]],
    k: [k[i], k[j]],
    qBefore: unrotate(q[i], q[j], at.qc[index], at.qs[index]),
    kBefore: unrotate(k[i], k[j], at.kc[index], at.ks[index]),
    qAngle: Math.atan2(at.qs[index], at.qc[index]),
    kAngle: Math.atan2(at.ks[index], at.kc[index]),
    share: (q[i] * k[i] + q[j] * k[j]) * scale,
  };
}

/** A pair on its way: turned by a part of its angle. @param {Pair} pair @param {number} row @param {number} key @param {number} part 0..1 @returns {Pair} */
export function turning(pair, row, key, part) {
  return {
    ...pair,
    q: turn(pair.qBefore, pair.theta * row * part),
    k: turn(pair.kBefore, pair.theta * key * part),
    qAngle: pair.theta * row * part,
    kAngle: pair.theta * key * part,
  };
}

/** @param {number[]} vector @param {number} angle */
const turn = ([x, y], angle) => [x * Math.cos(angle) - y * Math.sin(angle), x * Math.sin(angle) + y * Math.cos(angle)];
