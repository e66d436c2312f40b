// @ts-check
/** What is known of single heads: exact rows with their queries, keys, and a map; and the angles of layers. Recent heads are kept. */
import { f32, u8 } from "./codec.js";
import { meanShares, rowShares } from "./attention_math.js";
import { PooledMaps, Rows } from "./growing.js";

const MAP_CELLS = 512;
const HEADS_KEPT = 24;
const ROWS_KEPT = 4096;
const ROWS_SPAN = 16; // rows asked for at once
const KEYS_SPAN = 64; // keys asked for at once
const ROWS_AHEAD = 8; // so near to a row that is not here yet, it is asked for: arrow keys should never wait
const AHEAD = 64; // positions whose angles should be here before the run is

/** @typedef {{cos: Rows, sin: Rows}} Rotation a row a position, a column a pair */
/**
 * @typedef {{pattern: Float32Array, q: Float32Array, key: number, k: Float32Array}} ExactRow
 * whom a query looks at, the query, and the key that it looks at most; q and k after rotation
 */

export class Head {
  /** @param {number} layer @param {number} head */
  constructor(layer, head) {
    this.layer = layer;
    this.head = head;
    this.rows = 0; // for which the map is complete
    /** @type {Map<number, Float32Array>} k after rotation by position, as far as somebody chose it */
    this.keys = new Map();
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

  /** @param {number} position @param {ExactRow} row */
  remember(position, row) {
    if (this.exact.size >= ROWS_KEPT) this.exact.delete(this.exact.keys().next().value ?? -1);
    this.exact.set(position, row);
  }

  /** k after rotation at a position: that which the row looks at most came with it. @param {number} row @param {number} key */
  key(row, key) {
    const exact = this.exact.get(row);
    return exact?.key === key ? exact.k : (this.keys.get(key) ?? null);
  }
}

/** So many vectors of one length. @param {string} told f32 @param {number} count */
function vectorsOf(told, count) {
  const flat = f32(told);
  const size = flat.length / count;
  return Array.from({ length: count }, (_, i) => flat.slice(i * size, (i + 1) * size));
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
    const found = this.heads.get(key) || new Head(layer, head);
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
    head.remember(newest, { pattern, q: f32(focus.q), key: focus.key, k: f32(focus.k) });
    // rows after a hole are exact on their own, but the map must be gapless: `want` fetches it again
    if (focus.first > head.rows) return;
    const earlier = u8(focus.earlier);
    for (let row = focus.first, from = 0; row < newest; from += ++row) {
      head.map.addCells(row, earlier.subarray(from, from + row + 1));
    }
    head.map.addRow(newest, pattern);
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
      const [q, k] = [answer.q, answer.k].map((told) => vectorsOf(told, answer.count));
      for (let i = 0, from = 0; i < answer.count; i++) {
        const row = answer.first + i;
        head.remember(row, { pattern: flat.slice(from, from + row + 1), q: q[i], key: answer.keys[i], k: k[i] });
        from += row + 1;
      }
    });
  }

  /**
   * Ask for the key at a position and its neighbours, where neither its row nor anybody's choice brought it.
   * @param {number} layer @param {number} index @param {number} row @param {number} key
   */
  wantKey(layer, index, row, key) {
    const found = this.find(layer, index)?.key(row, key);
    if (!found && key < this.store.rows) this.fetchKeys(layer, index, key - (key % KEYS_SPAN));
  }

  /** @param {number} layer @param {number} index @param {number} first */
  fetchKeys(layer, index, first) {
    const last = Math.min(first + KEYS_SPAN, this.store.rows);
    const request = { layer, head: index, first, last };
    this.store.fetchOnce(`keys ${layer} ${index} ${first} ${last}`, "keys", request, (answer) => {
      const head = this.open(layer, index);
      vectorsOf(answer.k, answer.count).forEach((k, i) => head.keys.set(answer.first + i, k));
    });
  }
}
