// @ts-check
/** Drawing for the KV cache panel. */
import { Bitmap, line } from "./surface.js";
import { bytes, count } from "./format.js";

/** @typedef {{x: number, y: number, width: number, height: number, layers: number}} Box */

/**
 * @typedef {{
 *   line: Point[], facts: {positions: number, k: number, v: number, reserved: number}, end: number,
 *   extent: number, prompt: number, palette: import('./palette.js').Palette,
 * }} Growth  `line`: what was measured, oldest first; `end`: top of the axis in bytes
 */

/** @param {Box} box @param {{extent: number, end: number}} growth */
const scalesOf = (box, { extent, end }) => ({
  x: (/** @type {number} */ positions) => box.x + (positions / extent) * box.width,
  y: (/** @type {number} */ size) => box.y + box.height * (1 - size / end),
});

/** Bytes over positions, K below V; what is reserved stands apart. @param {CanvasRenderingContext2D} pen @param {Box} box @param {Growth} growth */
export function drawGrowth(pen, box, growth) {
  const { facts, palette } = growth;
  const { x, y } = scalesOf(box, growth);
  const now = { positions: facts.positions, k: facts.k, v: facts.v };
  const past = [{ positions: 0, k: 0, v: 0 }, ...growth.line.filter((m) => m.positions <= now.positions), now];
  const later = [now, ...growth.line.filter((m) => m.positions > now.positions)];
  for (const [points, alpha] of /** @type {[typeof past, number][]} */ ([
    [past, 0.85],
    [later, 0.22],
  ])) {
    pen.globalAlpha = alpha;
    area(
      pen,
      points,
      () => 0,
      (p) => p.k,
      palette.colors.k,
      x,
      y,
    );
    area(
      pen,
      points,
      (p) => p.k,
      (p) => p.k + p.v,
      palette.colors.v,
      x,
      y,
    );
    pen.globalAlpha = 1;
  }
  drawReserved(pen, box, growth, y);
  drawNow(pen, box, growth, x, y);
  drawLegend(pen, box, growth);
}

/** @typedef {{positions: number, k: number, v: number}} Point */

/** @param {CanvasRenderingContext2D} pen @param {Point[]} points @param {(p: Point) => number} low @param {(p: Point) => number} high @param {string} color @param {(n: number) => number} x @param {(n: number) => number} y */
function area(pen, points, low, high, color, x, y) {
  pen.fillStyle = color;
  pen.beginPath();
  points.forEach((p, i) => (i ? pen.lineTo(x(p.positions), y(high(p))) : pen.moveTo(x(p.positions), y(high(p)))));
  for (const p of [...points].reverse()) pen.lineTo(x(p.positions), y(low(p)));
  pen.fill();
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {Growth} growth */
export function drawAxes(pen, box, growth) {
  const { end, extent, prompt, palette } = growth;
  const { x, y } = scalesOf(box, growth);
  pen.font = palette.font(10);
  pen.lineWidth = 1;
  pen.fillStyle = palette.colors.muted;
  pen.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    pen.strokeStyle = part ? palette.colors.grid : palette.colors.faint;
    const at = Math.round(y(end * part)) + 0.5;
    line(pen, box.x, at, box.x + box.width, at);
    pen.fillText(part ? bytes(end * part) : "0", box.x - 6, at);
  }
  const floor = box.y + box.height + 9;
  pen.textAlign = "center";
  for (const n of ticks(extent, box.width)) pen.fillText(count(n), x(n), floor);
  pen.textAlign = "right";
  pen.fillText("positions", box.x + box.width, floor);
  pen.strokeStyle = palette.colors.faint;
  pen.setLineDash([2, 3]);
  if (prompt < extent) line(pen, Math.round(x(prompt)) + 0.5, box.y, Math.round(x(prompt)) + 0.5, box.y + box.height);
  pen.setLineDash([]);
}

/** Round ticks that leave room for the axis' name. @param {number} extent @param {number} width */
function ticks(extent, width) {
  const most = Math.max(1, Math.floor(width / 56));
  const unit = 10 ** Math.floor(Math.log10(extent / most || 1));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= 1 && extent / n <= most) || extent;
  const out = [];
  for (let n = 0; n <= extent * (1 - 56 / width); n += step) out.push(n);
  return out;
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {Growth} growth @param {(n: number) => number} y */
function drawReserved(pen, box, { facts, palette }, y) {
  if (!(facts.reserved > 0)) return;
  const at = Math.round(y(facts.reserved)) + 0.5;
  pen.strokeStyle = palette.colors.muted;
  pen.lineWidth = 1;
  pen.setLineDash([5, 3]);
  line(pen, box.x, at, box.x + box.width, at);
  pen.setLineDash([]);
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {Growth} growth @param {(n: number) => number} x @param {(n: number) => number} y */
function drawNow(pen, box, { facts, palette }, x, y) {
  const at = x(facts.positions);
  pen.strokeStyle = palette.colors.accent;
  pen.lineWidth = 1.5;
  line(pen, at, box.y, at, box.y + box.height);
  pen.fillStyle = palette.colors.accent;
  pen.beginPath();
  pen.arc(at, y(facts.k + facts.v), 3, 0, Math.PI * 2);
  pen.fill();
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {Growth} growth */
function drawLegend(pen, box, { facts, palette }) {
  pen.font = palette.font(11);
  pen.textAlign = "left";
  let left = box.x;
  const entries = [
    [`K ${bytes(facts.k)}`, palette.colors.k],
    [`V ${bytes(facts.v)}`, palette.colors.v],
  ];
  for (const [text, color] of entries) {
    pen.fillStyle = color;
    pen.fillRect(left, 3, 8, 8);
    pen.fillStyle = palette.colors.ink;
    pen.fillText(text, left + 12, 7.5);
    left += pen.measureText(text).width + 26;
  }
  pen.strokeStyle = palette.colors.muted;
  pen.setLineDash([5, 3]);
  line(pen, left, 7.5, left + 14, 7.5);
  pen.setLineDash([]);
  pen.fillStyle = palette.colors.muted;
  pen.fillText(`reserved ${bytes(facts.reserved)}`, left + 18, 7.5);
}

/** Which query heads share which KV head. @param {CanvasRenderingContext2D} pen @param {{x: number, y: number, width: number, height: number}} box @param {{query: number, kept: number}} heads @param {import('./palette.js').Palette} palette */
export function drawGlyph(pen, box, heads, palette) {
  const pitch = Math.min(18, box.width / heads.query);
  const size = Math.max(2, Math.min(12, pitch - 2));
  const left = box.x + (box.width - pitch * heads.query) / 2 + (pitch - size) / 2;
  const [top, bottom] = [28, Math.min(box.height - 30, 76)];
  const group = heads.query / heads.kept;
  for (let q = 0; q < heads.query; q++) {
    const x = left + q * pitch;
    const k = Math.floor(q / group);
    const center = left + (k * group + (group - 1) / 2) * pitch + size / 2;
    pen.strokeStyle = palette.colors.line;
    pen.lineWidth = 1;
    line(pen, x + size / 2, top + size, center, bottom);
    pen.fillStyle = palette.colors.q;
    pen.fillRect(x, top, size, size);
  }
  for (let k = 0; k < heads.kept; k++) {
    const x = left + (k * group + (group - 1) / 2) * pitch;
    pen.fillStyle = palette.colors.k;
    pen.fillRect(x, bottom, size / 2, size);
    pen.fillStyle = palette.colors.v;
    pen.fillRect(x + size / 2, bottom, size / 2, size);
  }
  glyphWords(pen, box, heads, palette, top, bottom + size);
}

/** @param {CanvasRenderingContext2D} pen @param {{x: number, width: number}} box @param {{query: number, kept: number}} heads @param {import('./palette.js').Palette} palette @param {number} top @param {number} bottom */
function glyphWords(pen, box, heads, palette, top, bottom) {
  pen.textAlign = "center";
  pen.font = palette.font(11);
  pen.fillStyle = palette.colors.qText;
  pen.fillText(`${heads.query} query heads ask`, box.x + box.width / 2, top - 12);
  pen.fillStyle = palette.colors.ink;
  pen.fillText(`${heads.kept} KV head${heads.kept === 1 ? "" : "s"} kept`, box.x + box.width / 2, bottom + 12);
}

/** Two blocks of cells side by side, a row a layer. @param {{x: number, y: number, width: number, height: number}} room @param {number} layers @returns {{k: Box, v: Box}} */
export function heatBoxes(room, layers) {
  const gutter = 26;
  const width = (room.width - 2 * gutter - 14) / 2;
  const height = Math.min(room.height - 20, layers * 20);
  const y = room.y + 18;
  return {
    k: { x: room.x + gutter, y, width, height, layers },
    v: { x: room.x + 2 * gutter + width + 12, y, width, height, layers },
  };
}

/** One pixel a cell; stretched when it is drawn. */
export class HeatPicture {
  constructor() {
    this.bitmap = new Bitmap();
    this.key = "";
    this.high = 0;
    this.count = 0; // columns painted
  }

  /** @param {import('./growing.js').Rows} rows @param {import('./store.js').Store} store @param {import('./palette.js').Palette} palette */
  paint(rows, store, palette) {
    const key = [store.run, store.extent, palette.version].join();
    if (key === this.key && rows.count === this.count) return;
    const { bitmap } = this;
    let first = key === this.key ? this.count : 0;
    const fresh = rows.data.subarray(first * rows.width, rows.count * rows.width);
    const high = fresh.reduce((a, b) => Math.max(a, b), first ? this.high : 0);
    if (high !== this.high) first = 0; // another scale
    Object.assign(this, { key, high, count: rows.count });
    bitmap.resize(Math.ceil(store.extent), rows.width);
    if (!first) bitmap.pixels.fill(palette.maskPixel);
    for (let n = first; n < rows.count; n++) {
      for (let layer = 0; layer < rows.width; layer++) {
        const level = rows.data[n * rows.width + layer] / (high || 1);
        bitmap.pixels[layer * bitmap.width + n] = palette.lut[Math.round(level * 255)];
      }
    }
    bitmap.flush();
  }
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {HeatPicture} picture @param {{store: import('./store.js').Store, positions: number, palette: import('./palette.js').Palette}} view */
export function drawHeat(pen, box, picture, { store, positions, palette }) {
  const column = box.width / store.extent;
  const row = box.height / box.layers;
  pen.imageSmoothingEnabled = column < 1;
  pen.drawImage(picture.bitmap.canvas, box.x, box.y, box.width, box.height);
  cellBorders(pen, box, column, row, store.extent, palette);
  const now = box.x + positions * column;
  pen.globalAlpha = 0.72;
  pen.fillStyle = palette.colors.panel;
  pen.fillRect(now, box.y, box.x + box.width - now, box.height);
  pen.globalAlpha = 1;
  pen.strokeStyle = palette.colors.accent;
  pen.lineWidth = 1.5;
  pen.strokeRect(now - Math.max(column, 2) - 0.5, box.y - 1, Math.max(column, 2) + 1, box.height + 2);
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {number} column @param {number} row @param {number} extent @param {import('./palette.js').Palette} palette */
function cellBorders(pen, box, column, row, extent, palette) {
  pen.strokeStyle = palette.colors.panel;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let layer = 1; layer < box.layers && row > 3; layer++) {
    const y = Math.round(box.y + layer * row) + 0.5;
    pen.moveTo(box.x, y);
    pen.lineTo(box.x + box.width, y);
  }
  for (let n = 1; n < extent && column >= 4; n++) {
    const x = Math.round(box.x + n * column) + 0.5;
    pen.moveTo(x, box.y);
    pen.lineTo(x, box.y + box.height);
  }
  pen.stroke();
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {'k'|'v'} which @param {number} high @param {number} layer @param {import('./palette.js').Palette} palette */
export function drawHeatLabels(pen, box, which, high, layer, palette) {
  pen.textAlign = "left";
  pen.font = palette.font(11, 600);
  pen.fillStyle = which === "k" ? palette.colors.kText : palette.colors.vText;
  const name = which === "k" ? "Keys" : "Values";
  pen.fillText(name, box.x, box.y - 10);
  const width = pen.measureText(name).width;
  pen.font = palette.font(10);
  pen.fillStyle = palette.colors.muted;
  pen.fillText(
    box.width > 200 ? `rms of each vector, 0 to ${high.toFixed(2)}` : `rms 0 to ${high.toFixed(2)}`,
    box.x + width + 6,
    box.y - 10,
  );
  const row = box.height / box.layers;
  const every = Math.ceil(11 / row);
  pen.textAlign = "right";
  for (let i = 0; i < box.layers; i++) {
    if (i !== layer && (i % every || Math.abs(i - layer) < every)) continue;
    pen.fillStyle = i === layer ? palette.colors.accent : palette.colors.muted;
    pen.font = palette.font(10, i === layer ? 600 : 400);
    pen.fillText(`L${i}`, box.x - 6, box.y + (i + 0.5) * row);
  }
}

/** Hatching over the positions that another run computed. @param {CanvasRenderingContext2D} pen @param {Box} box @param {number} shared positions @param {number} extent @param {import('./palette.js').Palette} palette */
export function drawShared(pen, box, shared, extent, palette) {
  if (!shared) return;
  const width = (Math.min(shared, extent) / extent) * box.width;
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y, width, box.height);
  pen.clip();
  pen.strokeStyle = palette.colors.panel;
  pen.globalAlpha = 0.75;
  pen.lineWidth = 1.5;
  for (let x = -box.height; x < width; x += 7) line(pen, box.x + x, box.y + box.height, box.x + x + box.height, box.y);
  pen.restore();
  pen.strokeStyle = palette.colors.ink;
  pen.lineWidth = 1;
  line(pen, Math.round(box.x + width) + 0.5, box.y - 2, Math.round(box.x + width) + 0.5, box.y + box.height + 2);
}
