// @ts-check
/** All heads at a glance: a tile per head, rows are layers, columns are heads. */
import { Bitmap, coverage } from "./surface.js";

const LEFT = 26; // room for layer labels
const TOP = 16; // room for head labels
const GAP = 2;

/** @typedef {{x: number, y: number, cell: number, layers: number, columns: number}} MosaicBox */

/** @param {{x: number, y: number, width: number, height: number}} room @param {number[]} heads @returns {MosaicBox} */
export function mosaicBox(room, heads) {
  const columns = Math.max(...heads);
  const cell = Math.floor(Math.min((room.width - LEFT) / columns, (room.height - TOP) / heads.length));
  return { x: room.x + LEFT, y: room.y + TOP, cell: Math.max(3, cell), layers: heads.length, columns };
}

/** @param {MosaicBox} box @param {{x: number, y: number}} at @param {number[]} heads */
export function mosaicHit(box, at, heads) {
  const head = Math.floor((at.x - box.x) / box.cell);
  const layer = Math.floor((at.y - box.y) / box.cell);
  if (layer < 0 || layer >= heads.length || head < 0 || head >= heads[layer]) return null;
  return { layer, head };
}

export class Mosaic {
  constructor() {
    this.bitmap = new Bitmap();
    this.key = "";
    this.version = -1; // of the tiles when they were painted
    this.rows = 0; // painted
  }

  /**
   * Repaint all pixels when the place changed, else those of new rows: rows come in order, and old ones stay.
   * @param {MosaicBox} box @param {import('./store.js').Store} store
   * @param {import('./palette.js').Palette} palette @param {number} ratio
   */
  paint(box, store, palette, ratio) {
    const tiles = /** @type {import('./growing.js').PooledMaps} */ (store.tiles);
    const extent = store.extent;
    const key = [store.run, tiles.bin, extent, box.cell, box.columns, ratio, palette.version].join();
    if (key === this.key && tiles.version === this.version) return;
    const from = key === this.key ? Math.floor(this.rows / tiles.bin) : 0;
    Object.assign(this, { key, version: tiles.version, rows: tiles.rows });
    const size = Math.max(1, Math.round((box.cell - GAP) * ratio));
    const pitch = Math.round(box.cell * ratio);
    const heads = /** @type {import('./types.js').Begin} */ (store.begin).model.heads;
    this.bitmap.resize(pitch * box.columns, pitch * box.layers);
    if (!from) this.bitmap.pixels.fill(0);
    const cover = coverage(size, extent / tiles.bin);
    let plane = 0;
    heads.forEach((count, layer) => {
      for (let head = 0; head < count; head++, plane++) {
        this.tile(tiles, plane, cover, palette.lut, { left: head * pitch, top: layer * pitch, from });
      }
    });
    this.bitmap.flush();
  }

  /**
   * @param {import('./growing.js').PooledMaps} tiles @param {number} plane
   * @param {{first: Int32Array, end: Int32Array}} cover @param {Uint32Array} lut
   * @param {{left: number, top: number, from: number}} place  `from`: the first row of cells that changed
   */
  tile(tiles, plane, cover, lut, { left, top, from: changed }) {
    const { limit, data } = tiles;
    const size = cover.first.length;
    const base = plane * limit * limit;
    const { width, pixels } = this.bitmap;
    for (let y = 0; y < size; y++) {
      if (cover.end[y] <= changed) continue;
      const to = (top + y) * width + left;
      for (let x = 0; x < size; x++) {
        let best = 0;
        for (let r = cover.first[y]; r < cover.end[y] && r < limit; r++) {
          const from = base + r * limit;
          for (let c = cover.first[x]; c < cover.end[x] && c < limit; c++)
            if (data[from + c] > best) best = data[from + c];
        }
        pixels[to + x] = lut[best];
      }
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {MosaicBox} box @param {number} ratio */
  draw(pen, box, ratio) {
    pen.drawImage(this.bitmap.canvas, box.x, box.y, this.bitmap.width / ratio, this.bitmap.height / ratio);
  }
}

/**
 * Labels, tile borders and the selected tile.
 * @param {CanvasRenderingContext2D} pen @param {MosaicBox} box @param {import('./types.js').ModelFacts} model
 * @param {import('./palette.js').Palette} palette @param {{layer: number, head: number}} selected
 */
export function drawMosaicFrame(pen, box, { heads, kinds }, palette, selected) {
  const side = box.cell - GAP;
  pen.lineWidth = 1;
  pen.strokeStyle = palette.colors.line;
  heads.forEach((count, layer) => {
    for (let head = 0; head < count; head++) {
      pen.strokeRect(box.x + head * box.cell - 0.5, box.y + layer * box.cell - 0.5, side + 1, side + 1);
    }
  });
  drawKinds(pen, box, kinds, palette);
  drawLabels(pen, box, palette, selected);
  pen.strokeStyle = palette.colors.accent;
  pen.lineWidth = 2;
  pen.strokeRect(box.x + selected.head * box.cell - 1, box.y + selected.layer * box.cell - 1, side + 2, side + 2);
}

/** What stands in the place of attention, in the row of such a layer. @param {CanvasRenderingContext2D} pen @param {MosaicBox} box @param {string[]} kinds @param {import('./palette.js').Palette} palette */
function drawKinds(pen, box, kinds, palette) {
  const room = box.columns * box.cell - GAP;
  pen.textAlign = "left";
  pen.font = palette.font(10);
  kinds.forEach((kind, layer) => {
    if (!kind) return;
    const y = box.y + layer * box.cell;
    pen.fillStyle = palette.colors.line;
    pen.fillRect(box.x, y + (box.cell - GAP) / 2, room, 1);
    if (box.cell < 12) return;
    let words = kind;
    while (words.length > 1 && pen.measureText(words).width + 8 > room) words = `${words.slice(0, -2).trimEnd()}…`;
    pen.fillStyle = palette.colors.panel;
    pen.fillRect(box.x, y, pen.measureText(words).width + 6, box.cell - GAP);
    pen.fillStyle = palette.colors.muted;
    pen.fillText(words, box.x, y + (box.cell - GAP) / 2);
  });
}

/** @param {CanvasRenderingContext2D} pen @param {MosaicBox} box @param {import('./palette.js').Palette} palette @param {{layer: number, head: number}} selected */
function drawLabels(pen, box, palette, selected) {
  const every = box.cell >= 24 ? 1 : box.cell >= 13 ? 2 : 4;
  const label = (
    /** @type {string} */ text,
    /** @type {boolean} */ on,
    /** @type {number} */ x,
    /** @type {number} */ y,
  ) => {
    pen.fillStyle = on ? palette.colors.accent : palette.colors.muted;
    pen.font = palette.font(11, on ? 600 : 400);
    pen.fillText(text, x, y);
  };
  const middle = (box.cell - GAP) / 2;
  const shown = (/** @type {number} */ i, /** @type {number} */ chosen) =>
    i === chosen || (i % every === 0 && Math.abs(i - chosen) >= every);
  pen.textAlign = "right";
  for (let layer = 0; layer < box.layers; layer++) {
    if (shown(layer, selected.layer))
      label(`L${layer}`, layer === selected.layer, box.x - 6, box.y + layer * box.cell + middle);
  }
  pen.textAlign = "center";
  for (let head = 0; head < box.columns; head++) {
    if (shown(head, selected.head))
      label(`H${head}`, head === selected.head, box.x + head * box.cell + middle, box.y - 8);
  }
}
