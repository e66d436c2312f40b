// @ts-check
/** What is known of single heads: exact rows with their queries, keys, and a map; and the angles of layers. Recent heads are kept. */
import { f32, u8 } from "./codec.js";
import { meanShares, rowShares } from "./attention_math.js";
import { PooledMaps, Rows } from "./growing.js";

const MAP_CELLS = 512;
const HEADS_KEPT = 24;
const ROWS_KEPT = 4096;
const ROWS_SPAN = 16; // rows asked for at once
const ROWS_AHEAD = 8; // so near to a row that is not here yet, it is asked for: arrow keys should never wait
const AHEAD = 64; // positions whose angles should be here before the run is

/** @typedef {{cos: Rows, sin: Rows}} Rotation a row a position, a column a pair */
/** @typedef {{pattern: Float32Array, q: Float32Array}} ExactRow whom a query looks at, and the query after rotation */

export class Head {
  /** @param {number} layer @param {number} head @param {number} size head size */
  constructor(layer, head, size) {
    this.layer = layer;
    this.head = head;
    this.rows = 0; // for which k and the map are complete
    this.k = new Rows(size);
    this.map = new PooledMaps(1, MAP_CELLS);
    /** @type {Map<number, ExactRow>} by position */
    this.exact = new Map();
    /** @type {(import('./attention_math.js').Shares|null)[]} by row, each computed once */
    this.shares = [];
  }

  /** Where the latest rows' attention goes on average, judged on the picture. @param {number} most rows */
  meanShares(most) {
    const { map } = this;
    for (let row = this.shares.length; row < map.rows; row++) {
      const pattern = Float32Array.from({ length: row + 1 }, (_, key) => (map.at(0, row, key) / 255) ** 2);
      this.shares.push(rowShares(pattern));
    }
    return meanShares(this.shares.slice(-most));
  }

  /** @param {number} position @param {Float32Array} pattern @param {Float32Array} q */
  remember(position, pattern, q) {
    if (this.exact.size >= ROWS_KEPT) this.exact.delete(this.exact.keys().next().value ?? -1);
    this.exact.set(position, { pattern, q });
  }
}

export class HeadBook {
  /** @param {import('./store.js').Store} store */
  constructor(store) {
    this.store = store;
    /** @type {Map<string, Head>} most recently used last */
    this.heads = new Map();
    /** @type {Map<number, Rotation>} by rotation table, for layers that share one share its angles */
    this.rotations = new Map();
  }

  /**
   * Angles of a layer, asked for ahead of the run; null where the layer does not rotate.
   * @param {number} layer @returns {Rotation|null}
   */
  wantAngles(layer) {
    const { store } = this;
    const { rope, planned } = store.begin || { rope: null, planned: 0 };
    const table = rope ? rope.layers[layer] : -1;
    if (!rope || table < 0) return null;
    const pairs = rope.tables[table].pairs.length;
    const known = this.rotations.get(table) || { cos: new Rows(pairs), sin: new Rows(pairs) };
    this.rotations.set(table, known);
    const first = known.cos.count;
    if (first < Math.min(planned, store.rows + AHEAD)) {
      store.fetchOnce(`angles ${table}`, "angles", { layer, first }, (answer) => {
        known.cos.write(answer.first, f32(answer.cos));
        known.sin.write(answer.first, f32(answer.sin));
      });
    }
    return known;
  }

  /** @param {number} layer @param {number} head @returns {Head|null} */
  find(layer, head) {
    return this.heads.get(`${layer}.${head}`) || null;
  }

  /** @param {number} layer @param {number} head @returns {Head} */
  open(layer, head) {
    const key = `${layer}.${head}`;
    const model = this.store.begin?.model;
    const size = model?.query_dims[layer] || model?.head_dims[layer] || 1; // keys as attended, not as cached
    const found = this.heads.get(key) || new Head(layer, head, size);
    this.heads.delete(key);
    this.heads.set(key, found);
    if (this.heads.size > HEADS_KEPT) this.heads.delete(this.heads.keys().next().value ?? "");
    return found;
  }

  /** New rows of the head that the server follows: the newest exactly, those before it for the picture. @param {any} focus */
  append(focus) {
    const head = this.open(focus.layer, focus.head);
    const newest = focus.first + focus.count - 1;
    const pattern = f32(focus.pattern);
    head.remember(newest, pattern, f32(focus.q));
    // rows after a hole are exact on their own, but keys and map must be gapless: `want` fetches them again
    if (focus.first > head.rows) return;
    const earlier = u8(focus.earlier);
    for (let row = focus.first, from = 0; row < newest; from += ++row) {
      head.map.addCells(row, earlier.subarray(from, from + row + 1));
    }
    head.map.addRow(newest, pattern);
    head.k.write(focus.first, f32(focus.k));
    head.rows = newest + 1;
  }

  /** The head, asked for when it is missing or behind the run. @param {number} layer @param {number} index */
  want(layer, index) {
    const { store } = this;
    const known = this.find(layer, index);
    if (store.rows && (!known || known.rows < store.rows)) {
      store.fetchOnce(`focus ${layer} ${index}`, "focus", { layer, head: index }, (answer) => {
        this.takeFocus(answer);
      });
    }
    return known;
  }

  /** @param {any} answer */
  takeFocus(answer) {
    const head = this.open(answer.layer, answer.head);
    const { bin, size, data } = answer.map;
    head.map = new PooledMaps(1, MAP_CELLS);
    head.map.merge({ bin, row: 0, rows: size, cols: size, data: u8(data) });
    head.map.rows = answer.rows;
    head.k.write(0, f32(answer.k));
    head.rows = answer.rows;
    for (const [row, { pattern }] of head.exact) if (row >= answer.rows) head.map.addRow(row, pattern);
  }

  /**
   * The exact row, asked for with its neighbours when it is missing.
   * @param {number} layer @param {number} index @param {number} position @returns {ExactRow|null}
   */
  wantRow(layer, index, position) {
    const { finished, rows } = this.store;
    const exact = this.find(layer, index)?.exact;
    const ahead = finished ? [position - ROWS_AHEAD, position + ROWS_AHEAD] : [];
    for (const each of [position, ...ahead]) {
      if (each >= 0 && each < rows && !exact?.has(each)) this.fetchRows(layer, index, each - (each % ROWS_SPAN));
    }
    return exact?.get(position) || null;
  }

  /** @param {number} layer @param {number} index @param {number} first */
  fetchRows(layer, index, first) {
    const last = Math.min(first + ROWS_SPAN, this.store.rows);
    const request = { layer, head: index, first, last };
    this.store.fetchOnce(`rows ${layer} ${index} ${first} ${last}`, "rows", request, (answer) => {
      const head = this.open(layer, index);
      const flat = f32(answer.pattern);
      const queries = f32(answer.q);
      const size = queries.length / answer.count;
      for (let row = answer.first, from = 0, at = 0; row < answer.first + answer.count; from += ++row, at += size) {
        head.remember(row, flat.slice(from, from + row + 1), queries.slice(at, at + size));
      }
    });
  }
}
