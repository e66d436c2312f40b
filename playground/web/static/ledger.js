// @ts-check
/** Drawing for the next-token panel: one row a candidate, a bar for the stage shown, a cell for every stage. */
import { fitText, line } from "./surface.js";
import { count, percent, visible } from "./format.js";

export const ROW = 18;
const NAME = 84;
const NUMBER = 58;
const LEAST_BAR = 56;

/** @typedef {{bar: number, barWidth: number, number: number, stages: number, step: number}} Columns  stages 0: no room for cells */

/** @param {number} width @param {number} stages @returns {Columns} */
export function columnsOf(width, stages) {
  const step = Math.min(58, Math.max(46, (width * 0.53) / stages));
  const cells = stages * step;
  const barWidth = width - NAME - NUMBER - cells;
  if (barWidth < LEAST_BAR) return { bar: NAME, barWidth: width - NAME - NUMBER, number: width, stages: 0, step: 0 };
  return { bar: NAME, barWidth, number: NAME + barWidth + NUMBER - 8, stages: width - cells + 2, step };
}

const NAMES = /** @type {Record<string, string>} */ ({
  softmax: "raw",
  repetition_penalty: "penalty",
  temperature: "temp",
  top_k: "top-k",
  top_p: "top-p",
  min_p: "min-p",
  dynatemp_range: "dyn. temp",
  typical_p: "typical",
  epsilon_cutoff: "epsilon",
  eta_cutoff: "eta",
  top_n_sigma: "sigma",
  tfs_z: "tail-free",
  xtc_probability: "XTC",
  frequency_penalty: "frequency",
  presence_penalty: "presence",
  dry_multiplier: "DRY",
  no_repeat_ngram_size: "n-gram",
  sequence_bias: "bias",
  bad_words_ids: "banned",
  force_words_ids: "forced",
  min_new_tokens: "length",
});

/** @param {{name: string}} stage */
export const stageName = ({ name }) => NAMES[name] || name;

/** @param {{name: string, setting: number|string|null}} stage */
export function stageTitle({ name, setting }) {
  const shown = setting === null || setting === "" ? "" : ` ${Number(Number(setting).toPrecision(4))}`;
  return stageName({ name }) + shown;
}

/**
 * @typedef {{
 *   rows: import('./distribution.js').Candidate[], rest: {count: number, mass: number[]}, stage: number, columns: Columns,
 *   width: number, end: number, shown: import('./distribution.js').Distribution,
 *   palette: import('./palette.js').Palette, text: (id: number) => string,
 * }} Ledger
 */

/** @param {CanvasRenderingContext2D} pen @param {Ledger} ledger */
export function drawRows(pen, ledger) {
  drawScale(pen, ledger);
  ledger.rows.forEach((candidate, i) => drawRow(pen, ledger, candidate, i * ROW + ROW / 2));
  drawRest(pen, ledger, ledger.rows.length * ROW + ROW / 2 + 1);
}

/** Quarter lines behind the bars. @param {CanvasRenderingContext2D} pen @param {Ledger} ledger */
function drawScale(pen, { columns, rows, palette }) {
  pen.strokeStyle = palette.colors.grid;
  pen.lineWidth = 1;
  const height = (rows.length + 1) * ROW;
  for (let part = 0; part <= 4; part++) {
    const x = Math.round(columns.bar + (columns.barWidth * part) / 4) + 0.5;
    line(pen, x, 0, x, height);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {Ledger} ledger @param {import('./distribution.js').Candidate} c @param {number} y */
function drawRow(pen, ledger, c, y) {
  const { palette, stage } = ledger;
  const gone = c.removedBy > 0 && stage >= c.removedBy;
  if (c.drawn) {
    pen.fillStyle = palette.colors.accentSoft;
    pen.fillRect(0, y - ROW / 2 + 1, ledger.width, ROW - 2);
  }
  drawName(pen, ledger, c, y, gone);
  drawBar(pen, ledger, c, y, gone);
  pen.font = palette.font(11, c.drawn ? 600 : 400);
  pen.textAlign = "right";
  pen.fillStyle = gone ? palette.colors.faint : palette.colors.ink;
  pen.fillText(gone ? "–" : percent(c.probabilities[stage]), ledger.columns.number, y);
  if (ledger.columns.stages) c.probabilities.forEach((_, i) => drawCell(pen, ledger, c, i, y));
}

/** @param {CanvasRenderingContext2D} pen @param {Ledger} ledger @param {import('./distribution.js').Candidate} c @param {number} y @param {boolean} gone */
function drawName(pen, { palette, text }, c, y, gone) {
  pen.textAlign = "left";
  pen.font = palette.font(12, c.drawn ? 600 : 400);
  pen.fillStyle = gone ? palette.colors.faintText : c.drawn ? palette.colors.accent : palette.colors.ink;
  const name = fitText(pen, visible(text(c.id)), NAME - 22);
  const left = 12;
  pen.fillText(name, left, y);
  if (gone) {
    pen.strokeStyle = palette.colors.faintText;
    pen.lineWidth = 1;
    line(pen, left - 1, Math.round(y) + 0.5, left + pen.measureText(name).width + 1, Math.round(y) + 0.5);
  }
  if (c.drawn || c.chosen) marker(pen, palette, y, c.chosen);
}

/** Filled: the token that is drawn under what is shown; open: drawn in the run, but not under what is shown. @param {CanvasRenderingContext2D} pen @param {import('./palette.js').Palette} palette @param {number} y @param {boolean} filled */
function marker(pen, palette, y, filled) {
  pen.beginPath();
  pen.moveTo(2, y - 4);
  pen.lineTo(8, y);
  pen.lineTo(2, y + 4);
  pen.closePath();
  pen.fillStyle = pen.strokeStyle = palette.colors.accent;
  pen.lineWidth = 1.25;
  if (filled) pen.fill();
  else pen.stroke();
}

/** The raw share as a ghost, the share at this stage on it, and what really happened as a tick. @param {CanvasRenderingContext2D} pen @param {Ledger} ledger @param {import('./distribution.js').Candidate} c @param {number} y @param {boolean} gone */
function drawBar(pen, ledger, c, y, gone) {
  const { columns, palette, end, stage, shown } = ledger;
  const long = (/** @type {number} */ p) => Math.min(1, p / end) * columns.barWidth;
  pen.fillStyle = palette.colors.ghost;
  pen.fillRect(columns.bar, y - 6, long(c.raw), 12);
  pen.fillStyle = c.drawn ? palette.colors.accent : palette.colors.bar;
  if (!gone) pen.fillRect(columns.bar, y - 4, Math.max(long(c.probabilities[stage]), 1), 8);
  else drawReason(pen, ledger, c, y, columns.bar + long(shown.whatIf ? Math.max(c.raw, c.happened) : c.raw));
  if (!shown.whatIf || c.happened === 0) return;
  pen.strokeStyle = palette.colors.muted;
  pen.lineWidth = 1;
  pen.strokeRect(columns.bar + 0.5, y - 6.5, Math.max(long(c.happened), 1), 13);
}

/** @param {CanvasRenderingContext2D} pen @param {Ledger} ledger @param {import('./distribution.js').Candidate} c @param {number} y @param {number} x */
function drawReason(pen, { palette, shown, columns }, c, y, x) {
  pen.font = palette.font(10);
  pen.fillStyle = palette.colors.faintText;
  const words = `cut by ${stageTitle(shown.stages[c.removedBy]).split(" ")[0]}`;
  const width = pen.measureText(words).width;
  const right = columns.bar + columns.barWidth;
  pen.textAlign = "left";
  if (x + 6 + width <= right) pen.fillText(words, x + 6, y);
}

/** @param {CanvasRenderingContext2D} pen @param {Ledger} ledger @param {import('./distribution.js').Candidate} c @param {number} i @param {number} y */
function drawCell(pen, { columns, palette, stage }, c, i, y) {
  const left = columns.stages + i * columns.step;
  const p = c.probabilities[i];
  const gone = c.removedBy > 0 && i >= c.removedBy;
  if (!gone) {
    pen.fillStyle = palette.probability(p);
    pen.fillRect(left, y - ROW / 2 + 1, columns.step - 2, ROW - 2);
  }
  pen.textAlign = "right";
  pen.font = palette.font(10, i === stage ? 600 : 400);
  pen.fillStyle = gone ? palette.colors.faintText : palette.inkOn(p);
  const words = gone ? (i === c.removedBy ? "✕" : "") : short(p);
  pen.fillText(words, left + columns.step - 8, y);
}

/** Percent without the sign: the column's head has it. @param {number} p */
const short = (p) => percent(p).replace(/\u00a0%$/, "");

/** Everything else in one honest bar. @param {CanvasRenderingContext2D} pen @param {Ledger} ledger @param {number} y */
function drawRest(pen, ledger, y) {
  const { columns, palette, rest, stage, end } = ledger;
  const long = (/** @type {number} */ p) => Math.min(1, p / end) * columns.barWidth;
  pen.strokeStyle = palette.colors.line;
  line(pen, 0, Math.round(y - ROW / 2) + 0.5, ledger.width, Math.round(y - ROW / 2) + 0.5);
  pen.fillStyle = palette.colors.ghost;
  pen.fillRect(columns.bar, y - 6, long(rest.mass[0]), 12);
  pen.fillStyle = palette.colors.faint;
  pen.fillRect(columns.bar, y - 4, long(rest.mass[stage]), 8);
  pen.font = palette.font(11);
  pen.fillStyle = palette.colors.muted;
  pen.textAlign = "left";
  pen.fillText(fitText(pen, `${count(rest.count)} others`, NAME - 6), 0, y);
  pen.textAlign = "right";
  pen.fillText(percent(rest.mass[stage]), columns.number, y);
  if (!columns.stages) return;
  pen.font = palette.font(10);
  rest.mass.forEach((mass, i) => pen.fillText(short(mass), columns.stages + (i + 1) * columns.step - 8, y));
}
