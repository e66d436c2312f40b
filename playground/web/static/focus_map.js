// @ts-check
/** The selected head in full: queries down, keys across, and below it the current row as arcs. */
import { Bitmap, coverage, fitText, line } from "./surface.js";
import { strongest } from "./attention_math.js";
import { percent, visible } from "./format.js";

export const GUTTER = 64; // room for query labels
export const ARCS = 44; // height of the arcs
export const KEYS = 28; // height of the key labels
const LABEL = 10.4; // px between labels that do not touch

/** @typedef {{x: number, y: number, size: number, extent: number}} MapBox  extent: positions along a side */

export class FocusMap {
  constructor() {
    this.bitmap = new Bitmap();
    this.key = "";
    this.version = -1; // of the map when it was painted
    this.rows = 0; // painted
  }

  /**
   * Rows come in order, and old ones stay: while nothing else changes, only new ones are painted.
   * @param {MapBox} box @param {{map: import('./growing.js').PooledMaps, plane: number}} picture
   * @param {import('./palette.js').Palette} palette @param {number} ratio
   */
  paint(box, { map, plane }, palette, ratio) {
    const side = Math.max(1, Math.round(box.size * ratio));
    const key = [map.id, map.bin, plane, box.extent, side, palette.version].join();
    if (key === this.key && map.version === this.version) return;
    const from = key === this.key ? Math.floor(this.rows / map.bin) : 0;
    Object.assign(this, { key, version: map.version, rows: map.rows });
    this.bitmap.resize(side, side);
    if (!from) this.bitmap.pixels.fill(palette.maskPixel);
    const cover = coverage(side, box.extent / map.bin);
    const first = Math.max(
      0,
      cover.end.findIndex((end) => end > from),
    );
    this.fill(map, plane * map.limit ** 2, cover, palette.lut, first);
    this.bitmap.flush(first);
  }

  /** @param {import('./growing.js').PooledMaps} map @param {number} base @param {{first: Int32Array, end: Int32Array}} cover @param {Uint32Array} lut @param {number} top first row of pixels */
  fill(map, base, cover, lut, top) {
    const { limit, data } = map;
    const { width, pixels } = this.bitmap;
    const rows = Math.ceil(map.rows / map.bin);
    for (let y = top; y < width; y++) {
      const last = cover.end[y] - 1;
      if (cover.first[y] >= rows) break;
      for (let x = 0; x < width && cover.first[x] <= last; x++) {
        let best = 0;
        for (let r = cover.first[y]; r < cover.end[y] && r < limit; r++) {
          for (let c = cover.first[x]; c < cover.end[x] && c < limit; c++) {
            if (data[base + r * limit + c] > best) best = data[base + r * limit + c];
          }
        }
        pixels[y * width + x] = lut[best];
      }
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {MapBox} box */
  draw(pen, box) {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.bitmap.canvas, box.x, box.y, box.size, box.size);
  }
}

/** Centre of a position along an axis of the map. @param {MapBox} box @param {number} position */
export const along = (box, position) => ((position + 0.5) * box.size) / box.extent;

/** @param {MapBox} box @param {{x: number, y: number}} at @returns {{row: number, key: number}|null} */
export function mapHit(box, at) {
  const row = Math.floor(((at.y - box.y) / box.size) * box.extent);
  const key = Math.floor(((at.x - box.x) / box.size) * box.extent);
  if (row < 0 || row >= box.extent || key < 0 || key > row) return null;
  return { row, key };
}

/**
 * What surrounds the map and seldom changes.
 * @param {CanvasRenderingContext2D} pen @param {MapBox} box
 * @param {import('./live.js').View} view @param {import('./palette.js').Palette} palette
 */
export function drawMapFrame(pen, box, view, palette) {
  pen.strokeStyle = palette.colors.line;
  pen.lineWidth = 1;
  pen.strokeRect(box.x - 0.5, box.y - 0.5, box.size + 1, box.size + 1);
  drawKeyTicks(pen, box, palette);
  drawCorner(pen, box, view, palette);
}

/**
 * The current row and the chosen key.
 * @param {CanvasRenderingContext2D} pen @param {MapBox} box
 * @param {import('./live.js').View} view @param {import('./palette.js').Palette} palette
 */
export function drawSelected(pen, box, view, palette) {
  drawOwnLabel(pen, box, view, palette);
  const step = box.size / box.extent;
  const top = box.y + view.row * step;
  pen.lineWidth = 1;
  pen.strokeStyle = palette.colors.k;
  if (view.key !== null)
    line(pen, box.x + along(box, view.key), box.y + top - box.y, box.x + along(box, view.key), box.y + box.size + ARCS);
  pen.strokeStyle = palette.colors.accent;
  pen.lineWidth = 1.5;
  const height = Math.max(step, 3);
  pen.strokeRect(box.x - 1, top + step / 2 - height / 2 - 0.75, (view.row + 1) * step + 2, height + 1.5);
}

/** What the axes are, in the corner that the causal mask leaves empty. @param {CanvasRenderingContext2D} pen @param {MapBox} box @param {import('./live.js').View} view @param {import('./palette.js').Palette} palette */
function drawCorner(pen, box, view, palette) {
  if (box.size < 110) return;
  pen.textAlign = "right";
  const lines = [`layer ${view.layer} · head ${view.head}`, "queries ↓", "keys →"];
  lines.forEach((text, i) => {
    pen.font = palette.font(10, i ? 400 : 600);
    pen.fillStyle = palette.colors.muted;
    pen.fillText(text, box.x + box.size - 6, box.y + 10 + i * 13);
  });
}

/** Rows that have room for a label: each, or every so many. @param {MapBox} box @param {import('./live.js').View} view */
export function labelledRows(box, view) {
  const step = box.size / box.extent;
  const every = Math.max(1, axisStep(LABEL / step));
  const rows = [];
  for (let row = 0; row < view.store.rows; row += every) {
    if (Math.abs(row - view.row) * step >= LABEL) rows.push(row); // the current row has its own label
  }
  return { rows, byName: every === 1 };
}

/** @param {CanvasRenderingContext2D} pen @param {MapBox} box @param {{rows: number[], byName: boolean}} labels @param {import('./types.js').Token[]} tokens @param {import('./palette.js').Palette} palette */
export function drawQueryLabels(pen, box, { rows, byName }, tokens, palette) {
  pen.textAlign = "right";
  pen.fillStyle = palette.colors.muted;
  pen.font = palette.font(10);
  for (const row of rows) {
    const text = byName ? visible(tokens[row].text) : String(row);
    pen.fillText(fitText(pen, text, GUTTER - 10), box.x - 6, box.y + along(box, row));
  }
}

/** @param {CanvasRenderingContext2D} pen @param {MapBox} box @param {import('./live.js').View} view @param {import('./palette.js').Palette} palette */
function drawOwnLabel(pen, box, view, palette) {
  if (view.row < 0) return;
  pen.textAlign = "right";
  pen.fillStyle = palette.colors.accent;
  pen.font = palette.font(11, 600);
  pen.fillText(
    fitText(pen, visible(view.store.tokens[view.row].text), GUTTER - 8),
    box.x - 6,
    box.y + along(box, view.row),
  );
}

/** Positions above the map. @param {CanvasRenderingContext2D} pen @param {MapBox} box @param {import('./palette.js').Palette} palette */
function drawKeyTicks(pen, box, palette) {
  const every = axisStep((28 * box.extent) / box.size);
  pen.textAlign = "center";
  pen.font = palette.font(10);
  pen.fillStyle = palette.colors.muted;
  for (let key = 0; along(box, key) < box.size - 8; key += every) {
    pen.fillText(String(key), box.x + along(box, key), box.y - 8);
  }
}

/** Round steps for ticks: 1, 2, 5, 10 ... at least `least`. @param {number} least */
function axisStep(least) {
  for (let unit = 1; ; unit *= 10) for (const n of [1, 2, 5]) if (n * unit >= least) return n * unit;
}

/**
 * The current row as arcs from the query to its keys, on the map's own key axis.
 * @param {CanvasRenderingContext2D} pen @param {MapBox} box
 * @param {import('./live.js').View} view @param {import('./palette.js').Palette} palette
 */
export function drawArcs(pen, box, view, palette) {
  const floor = box.y + box.size + 4 + ARCS;
  pen.strokeStyle = palette.colors.line;
  pen.lineWidth = 1;
  line(pen, box.x, floor + 0.5, box.x + box.size, floor + 0.5);
  const pattern = view.pattern;
  if (!pattern) return;
  const from = box.x + along(box, view.row);
  for (let key = 0; key < pattern.length; key++) {
    if (pattern[key] < 0.004) continue;
    arc(pen, from, box.x + along(box, key), floor, pattern[key], palette);
  }
  drawKeyLabels(pen, box, view, palette, floor);
}

/** @param {CanvasRenderingContext2D} pen @param {number} from @param {number} to @param {number} floor @param {number} p @param {import('./palette.js').Palette} palette */
function arc(pen, from, to, floor, p, palette) {
  pen.strokeStyle = palette.probability(Math.max(p, 0.04));
  pen.lineWidth = 0.75 + 4 * p;
  const half = Math.abs(from - to) / 2;
  pen.beginPath();
  if (half < 1) pen.arc(from, floor - 5, 4, 0, Math.PI * 2);
  else pen.ellipse((from + to) / 2, floor, half, Math.min(ARCS - 4, 6 + half * 0.6), 0, Math.PI, 2 * Math.PI);
  pen.stroke();
}

/** The strongest keys by name and share, as many as fit side by side. @param {CanvasRenderingContext2D} pen @param {MapBox} box @param {import('./live.js').View} view @param {import('./palette.js').Palette} palette @param {number} floor */
function drawKeyLabels(pen, box, view, palette, floor) {
  const pattern = /** @type {Float32Array} */ (view.pattern);
  const first = view.key === null ? [] : [view.key];
  const order = [...first, ...strongest(pattern, 8).filter((key) => key !== view.key && pattern[key] > 0.02)];
  /** @type {number[][]} */
  const taken = [];
  for (const key of order) {
    pen.font = palette.font(11, key === view.key ? 600 : 400);
    const name = fitText(pen, visible(view.store.tokens[key].text), 72);
    const share = percent(pattern[key]);
    const width = Math.max(pen.measureText(name).width, pen.measureText(share).width);
    const left = Math.min(Math.max(box.x + along(box, key) - width / 2, box.x - GUTTER + 4), box.x + box.size - width);
    if (taken.some(([a, b]) => left < b + 6 && left + width > a - 6)) continue;
    taken.push([left, left + width]);
    pen.fillStyle = key === view.key ? palette.colors.kText : palette.colors.ink;
    pen.textAlign = "center";
    pen.fillText(name, left + width / 2, floor + 9);
    pen.fillStyle = palette.colors.muted;
    pen.font = palette.font(10);
    pen.fillText(share, left + width / 2, floor + 21);
  }
}
