// @ts-check
/** Arrays that grow while a run goes on, addressed by position so that a lost frame leaves a hole, not a shift. */

/** @param {number} need @param {number} have */
function roomFor(need, have) {
  let room = Math.max(have, 16);
  while (room < need) room *= 2;
  return room;
}

/** Rows of `width` float32 numbers. */
export class Rows {
  /** @param {number} width */
  constructor(width) {
    this.width = width;
    this.count = 0;
    this.data = new Float32Array(16 * width);
  }

  /** @param {number} first @param {Float32Array} values whole rows */
  write(first, values) {
    const end = first + values.length / this.width;
    if (end * this.width > this.data.length) {
      const wider = new Float32Array(roomFor(end, this.data.length / this.width) * this.width);
      wider.set(this.data);
      this.data = wider;
    }
    this.data.set(values, first * this.width);
    this.count = Math.max(this.count, end);
  }

  /** @param {number} index */
  row(index) {
    return this.data.subarray(index * this.width, (index + 1) * this.width);
  }
}

/**
 * Square maps of 8-bit cells, max-pooled: when the rows outgrow `limit` cells, neighbours merge
 * (a bin is a power of two), and the largest value wins so that thin diagonals stay visible.
 */
let made = 0;

export class PooledMaps {
  /** @param {number} planes @param {number} limit cells a side */
  constructor(planes, limit) {
    this.id = ++made;
    this.planes = planes;
    this.limit = limit;
    this.bin = 1;
    this.rows = 0;
    this.version = 0;
    this.data = new Uint8Array(planes * limit * limit);
  }

  /** Merge cells until one spans `bin` positions. @param {number} bin */
  coarsen(bin) {
    const factor = bin / this.bin;
    if (factor <= 1) return;
    const { limit, data } = this;
    const next = new Uint8Array(data.length);
    for (let p = 0; p < this.planes; p++) {
      const base = p * limit * limit;
      for (let r = 0; r < limit; r++) {
        const to = base + Math.floor(r / factor) * limit;
        for (let c = 0; c < limit; c++) {
          const at = to + Math.floor(c / factor);
          const value = data[base + r * limit + c];
          if (value > next[at]) next[at] = value;
        }
      }
    }
    this.data = next;
    this.bin = bin;
  }

  /**
   * Max-merge a block of cells [planes, rows, cols] that starts at cell row `row`.
   * @param {{bin: number, row: number, rows: number, cols: number, data: Uint8Array}} block
   */
  merge(block) {
    this.coarsen(block.bin);
    while ((block.row + block.rows) * block.bin > this.limit * this.bin) this.coarsen(this.bin * 2);
    const factor = this.bin / block.bin;
    const { limit, data } = this;
    for (let p = 0, from = 0; p < this.planes; p++) {
      for (let r = 0; r < block.rows; r++) {
        const to = p * limit * limit + Math.floor((block.row + r) / factor) * limit;
        for (let c = 0; c < block.cols; c++, from++) {
          const at = factor === 1 ? to + c : to + Math.floor(c / factor);
          if (block.data[from] > data[at]) data[at] = block.data[from];
        }
      }
    }
    this.version++;
  }

  /** One exact row into plane 0, as sqrt(p) in 8 bits. @param {number} position @param {Float32Array} pattern */
  addRow(position, pattern) {
    this.addCells(
      position,
      Uint8Array.from(pattern, (p) => Math.round(Math.sqrt(p) * 255)),
    );
  }

  /** One row of cells, a cell a position, into plane 0. @param {number} position @param {Uint8Array} cells */
  addCells(position, cells) {
    while (position >= this.limit * this.bin) this.coarsen(this.bin * 2);
    const to = Math.floor(position / this.bin) * this.limit;
    for (let c = 0; c < cells.length; c++) {
      const at = to + Math.floor(c / this.bin);
      if (cells[c] > this.data[at]) this.data[at] = cells[c];
    }
    this.rows = Math.max(this.rows, position + 1);
    this.version++;
  }

  /** @param {number} plane @param {number} row in cells @param {number} col in cells */
  at(plane, row, col) {
    return this.data[(plane * this.limit + row) * this.limit + col];
  }
}
