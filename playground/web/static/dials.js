// @ts-check
/** Drawing for the RoPE panel: dials and the bars of what each pair adds. */
import { line } from "./surface.js";
import { plain, signed } from "./format.js";

const TURN = Math.PI * 2;

/** A grid of square cells that fills a room best. @param {number} width @param {number} height @param {number} n */
export function grid(width, height, n) {
  let best = { columns: 1, rows: n, cell: 0 };
  for (let columns = 1; columns <= n; columns++) {
    const rows = Math.ceil(n / columns);
    const cell = Math.min(width / columns, height / (rows * 1.22));
    if (cell > best.cell) best = { columns, rows, cell };
  }
  return { ...best, stepX: width / best.columns, stepY: height / best.rows };
}

/** @typedef {{x: number, y: number, r: number}} Dial */

/** Circles, as one path. @param {CanvasRenderingContext2D} pen @param {Dial[]} dials */
export function drawRings(pen, dials) {
  pen.beginPath();
  for (const { x, y, r } of dials) {
    pen.moveTo(x + r, y);
    pen.arc(x, y, r, 0, TURN);
  }
  pen.stroke();
}

/**
 * The hands of dials: before (thin, faint) and after (strong), q and k on one scale each. Dials do not overlap, so
 * hands of a kind make one path: a stroke for each would take several times as long.
 * @param {CanvasRenderingContext2D} pen @param {Dial[]} dials @param {import('./rope_math.js').Pair[]} pairs
 * @param {{q: number, k: number}} longest @param {import('./palette.js').Palette} palette
 */
export function drawHands(pen, dials, pairs, longest, palette) {
  const weight = dials[0].r > 30 ? 2.5 : 1.75;
  const { k, q } = palette.colors;
  for (const [which, unit, color, alpha, width] of /** @type {const} */ ([
    ["kBefore", longest.k, k, 0.35, 1],
    ["qBefore", longest.q, q, 0.35, 1],
    ["k", longest.k, k, 1, weight],
    ["q", longest.q, q, 1, weight],
  ])) {
    pen.globalAlpha = alpha;
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = width;
    const tips = pairs.map((pair, i) => tip(dials[i], pair[which], unit));
    strokeHands(pen, dials, tips, width * (alpha === 1 ? 1.1 : 0.9));
  }
  pen.globalAlpha = 1;
}

/** Where a hand ends; y up, as in mathematics. @param {Dial} at @param {number[]} vector @param {number} longest */
function tip(at, [x, y], longest) {
  const length = Math.hypot(x, y) || 1e-9;
  // the square root keeps the directions of short pairs readable
  const unit = ((at.r - 1) * Math.sqrt(length / longest)) / length;
  return { x: at.x + x * unit, y: at.y - y * unit };
}

/** @param {CanvasRenderingContext2D} pen @param {Dial[]} dials @param {{x: number, y: number}[]} tips @param {number} radius */
function strokeHands(pen, dials, tips, radius) {
  pen.beginPath();
  dials.forEach((from, i) => {
    pen.moveTo(from.x, from.y);
    pen.lineTo(tips[i].x, tips[i].y);
  });
  pen.stroke();
  pen.beginPath();
  for (const { x, y } of tips) {
    pen.moveTo(x + radius, y);
    pen.arc(x, y, radius, 0, TURN);
  }
  pen.fill();
}

/**
 * The large dial: also how far each vector was turned.
 * @param {CanvasRenderingContext2D} pen @param {Dial} at @param {import('./rope_math.js').Pair} pair
 * @param {{q: number, k: number}} longest @param {import('./palette.js').Palette} palette
 */
export function drawBigDial(pen, at, pair, longest, palette) {
  sweep(pen, at, pair.kBefore, pair.kAngle, at.r * 0.3, palette.colors.k);
  sweep(pen, at, pair.qBefore, pair.qAngle, at.r * 0.42, palette.colors.q);
  drawHands(pen, [at], [pair], longest, palette);
}

/** What the large dial is drawn on. @param {CanvasRenderingContext2D} pen @param {Dial} at @param {import('./palette.js').Palette} palette */
export function drawBigRing(pen, at, palette) {
  pen.strokeStyle = palette.colors.grid;
  pen.lineWidth = 1;
  line(pen, at.x - at.r, at.y, at.x + at.r, at.y);
  line(pen, at.x, at.y - at.r, at.x, at.y + at.r);
  pen.strokeStyle = palette.colors.accent;
  pen.lineWidth = 1.5;
  drawRings(pen, [at]);
}

/** @param {CanvasRenderingContext2D} pen @param {{x: number, y: number, r: number}} at @param {number[]} before @param {number} angle @param {number} radius @param {string} color */
function sweep(pen, at, [x, y], angle, radius, color) {
  const from = Math.atan2(y, x);
  pen.globalAlpha = 0.14;
  pen.fillStyle = color;
  pen.beginPath();
  pen.moveTo(at.x, at.y);
  pen.arc(at.x, at.y, radius, -from, -(from + angle), angle > 0);
  pen.fill();
  pen.globalAlpha = 0.6;
  pen.strokeStyle = color;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.arc(at.x, at.y, radius, -from, -(from + angle), angle > 0);
  pen.stroke();
  pen.globalAlpha = 1;
}

/** @typedef {{x: number, y: number, width: number, height: number}} Box */

/** @typedef {{high: number, low: number, unit: number, zero: number}} ShareScale  both ends in scores, `unit` in px, `zero` the y of no score */

/** Of the bars, zero line in the middle of what is needed. @param {Box} box @param {number[]} values @returns {ShareScale} */
export function shareScale(box, values) {
  const high = niceEnd(Math.max(...values, 0));
  const low = niceEnd(Math.max(...values.map((v) => -v), 0));
  const unit = box.height / (high + low || 1);
  return { high, low, unit, zero: box.y + high * unit };
}

/**
 * Bars of what each pair adds to the score.
 * @param {CanvasRenderingContext2D} pen @param {Box} box @param {import('./rope_math.js').Decomposition} parts
 * @param {ShareScale} scale @param {number} chosen @param {import('./palette.js').Palette} palette
 */
export function drawShares(pen, box, parts, { zero, unit }, chosen, palette) {
  const values = shareValues(parts);
  const step = box.width / values.length;
  values.forEach((value, i) => {
    const rest = i >= parts.pairs.length;
    pen.fillStyle = rest ? palette.colors.faint : i === chosen ? palette.colors.accent : palette.colors.bar;
    const top = value >= 0 ? zero - value * unit : zero;
    pen.fillRect(box.x + i * step + step * 0.15, top, Math.max(1, step * 0.7), Math.max(0.75, Math.abs(value) * unit));
  });
}

/** @param {import('./rope_math.js').Decomposition} parts  the last entry is what does not rotate, when there is such */
export const shareValues = (parts) => [...parts.pairs.map((p) => p.share), ...(hasRest(parts) ? [parts.rest] : [])];

/** @param {import('./rope_math.js').Decomposition} parts */
export const hasRest = (parts) => Math.abs(parts.rest) > 1e-4 * Math.max(1, Math.abs(parts.score));

/** Round ends keep the bars from jumping. @param {number} x */
function niceEnd(x) {
  if (x <= 0) return 0;
  const unit = 10 ** Math.floor(Math.log10(x));
  for (const n of [1, 2, 5, 10]) if (x <= n * unit) return n * unit;
  return 10 * unit;
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {ShareScale} scale @param {import('./palette.js').Palette} palette */
export function drawShareAxis(pen, box, { zero, high, low }, palette) {
  pen.lineWidth = 1;
  pen.font = palette.font(10);
  pen.textAlign = "right";
  for (const [value, y] of [
    [high, box.y],
    [0, zero],
    [-low, box.y + box.height],
  ]) {
    if (value !== 0 && Math.abs(y - zero) < 10) continue;
    pen.strokeStyle = value === 0 ? palette.colors.faint : palette.colors.grid;
    line(pen, box.x, Math.round(y) + 0.5, box.x + box.width, Math.round(y) + 0.5);
    pen.fillStyle = palette.colors.muted;
    pen.fillText(value === 0 ? "0" : signed(value, value >= 1 || value <= -1 ? 0 : 2), box.x - 6, y);
  }
}

/** @param {number} radians */
function turned(radians) {
  const turns = Math.floor(radians / TURN);
  const rest = `${plain(((radians - turns * TURN) * 180) / Math.PI, 0)}°`;
  return turns ? `${turns.toLocaleString("en-US")} turn${turns > 1 ? "s" : ""} + ${rest}` : rest;
}

/** What the large dial shows, in words. @param {import('./rope_math.js').Pair} pair @param {number} row @param {number} key */
export function pairFacts(pair, row, key) {
  const turn = TURN / pair.theta;
  const angle = (/** @type {number} */ position) => turned(position * pair.theta);
  return {
    frequency: `θ ${pair.theta >= 0.01 ? pair.theta.toFixed(3) : pair.theta.toExponential(1)} rad per token`,
    turn: `one turn in ${turn < 100 ? turn.toFixed(1) : Math.round(turn).toLocaleString("en-US")} tokens`,
    q: `q ${row} × θ = ${angle(row)}`,
    k: `k ${key} × θ = ${angle(key)}`,
    share: `adds ${signed(pair.share)}`,
  };
}
