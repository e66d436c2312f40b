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

/**
 * One dial: before (thin, faint) and after (strong), q and k on one scale each.
 * @param {CanvasRenderingContext2D} pen @param {{x: number, y: number, r: number}} at @param {import('./rope_math.js').Pair} pair
 * @param {{q: number, k: number}} longest @param {import('./palette.js').Palette} palette @param {boolean} chosen
 */
export function drawDial(pen, at, pair, longest, palette, chosen) {
  pen.lineWidth = chosen ? 1.5 : 1;
  pen.strokeStyle = chosen ? palette.colors.accent : palette.colors.line;
  pen.beginPath();
  pen.arc(at.x, at.y, at.r, 0, TURN);
  pen.stroke();
  hand(pen, at, pair.kBefore, longest.k, palette.colors.k, 0.35, 1);
  hand(pen, at, pair.qBefore, longest.q, palette.colors.q, 0.35, 1);
  const weight = at.r > 30 ? 2.5 : 1.75;
  hand(pen, at, pair.k, longest.k, palette.colors.k, 1, weight);
  hand(pen, at, pair.q, longest.q, palette.colors.q, 1, weight);
}

/** y up, as in mathematics. @param {CanvasRenderingContext2D} pen @param {{x: number, y: number, r: number}} at @param {number[]} v @param {number} longest @param {string} color @param {number} alpha @param {number} weight */
function hand(pen, at, [x, y], longest, color, alpha, weight) {
  const length = Math.hypot(x, y) || 1e-9;
  // the square root keeps the directions of short pairs readable
  const unit = ((at.r - 1) * Math.sqrt(length / longest)) / length;
  pen.globalAlpha = alpha;
  pen.strokeStyle = pen.fillStyle = color;
  pen.lineWidth = weight;
  line(pen, at.x, at.y, at.x + x * unit, at.y - y * unit);
  pen.beginPath();
  pen.arc(at.x + x * unit, at.y - y * unit, weight * (alpha === 1 ? 1.1 : 0.9), 0, TURN);
  pen.fill();
  pen.globalAlpha = 1;
}

/**
 * The large dial: also how far each vector was turned.
 * @param {CanvasRenderingContext2D} pen @param {{x: number, y: number, r: number}} at @param {import('./rope_math.js').Pair} pair
 * @param {{q: number, k: number}} longest @param {import('./palette.js').Palette} palette
 */
export function drawBigDial(pen, at, pair, longest, palette) {
  pen.strokeStyle = palette.colors.grid;
  pen.lineWidth = 1;
  line(pen, at.x - at.r, at.y, at.x + at.r, at.y);
  line(pen, at.x, at.y - at.r, at.x, at.y + at.r);
  sweep(pen, at, pair.kBefore, pair.kAngle, at.r * 0.3, palette.colors.k);
  sweep(pen, at, pair.qBefore, pair.qAngle, at.r * 0.42, palette.colors.q);
  drawDial(pen, at, pair, longest, palette, true);
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

/**
 * Bars of what each pair adds to the score, zero line in the middle of what is needed.
 * @param {CanvasRenderingContext2D} pen @param {Box} box @param {import('./rope_math.js').Decomposition} parts
 * @param {number} chosen @param {import('./palette.js').Palette} palette
 */
export function drawShares(pen, box, parts, chosen, palette) {
  const values = shareValues(parts);
  const high = niceEnd(Math.max(...values, 0));
  const low = niceEnd(Math.max(...values.map((v) => -v), 0));
  const unit = box.height / (high + low || 1);
  const zero = box.y + high * unit;
  drawShareAxis(pen, box, zero, high, low, palette);
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

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {number} zero @param {number} high @param {number} low @param {import('./palette.js').Palette} palette */
function drawShareAxis(pen, box, zero, high, low, palette) {
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
