// @ts-check
/** Attention: all heads, the chosen head, the current row. */
import { entropy, headKind, KINDS, rowShares, strongest } from "./attention_math.js";
import { exact, nats, percent, quote, visible } from "./format.js";
import { ARCS, drawArcs, drawMapFrame, drawQueryLabels, drawSelected, FocusMap } from "./focus_map.js";
import { GUTTER, KEYS, labelledRows, mapHit } from "./focus_map.js";
import { drawMosaicFrame, Mosaic, mosaicBox, mosaicHit } from "./mosaic.js";
import { headMenu } from "./head_menu.js";
import { Panel } from "./panel.js";
import { picker } from "./picker.js";
import { Sheet } from "./surface.js";

const EMPTY =
  "Every head of every layer will show here as a tile: which earlier tokens each token reads from. Choose one to see it in full.";
const ABOVE = 16; // labels above the map, as high as those of the mosaic
const NARROW = 420; // px: below it the map stands under the mosaic
const KIND_ROWS = 128; // rows that judge a head

export class AttentionPanel {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.panel = new Panel({ name: "Attention", id: "attention", empty: EMPTY, ...app.hooks });
    this.mosaic = new Mosaic();
    this.map = new FocusMap();
    this.sheets = { frame: new Sheet(), labels: new Sheet() };
    this.kindKey = "";
    /** @type {typeof KINDS[0]|null} */
    this.kind = null;
    /** @type {{mosaic: import('./mosaic.js').MosaicBox, map: import('./focus_map.js').MapBox}|null} */
    this.boxes = null;
    this.layer = picker("Layer", (layer) => app.selection.set({ layer }));
    this.head = picker("Head", (head) => app.selection.set({ head }));
    this.menu = headMenu((head) => app.selection.set(head));
    this.panel.controls.append(this.menu.root, this.layer.root, this.head.root);
    this.listen();
  }

  listen() {
    const host = this.panel.canvasHost;
    host.addEventListener("click", (/** @type {MouseEvent} */ event) => this.onClick(event));
    host.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.onHover(event));
    host.addEventListener("pointerleave", () => {
      this.app.tip.hide();
      this.panel.surface.unmark();
    });
  }

  /** @param {MouseEvent} event */
  onClick(event) {
    const { store, selection } = this.app;
    if (!this.boxes || !store.begin) return;
    const at = this.panel.surface.point(event);
    const tile = mosaicHit(this.boxes.mosaic, at, store.begin.model.heads);
    if (tile) return void selection.set(tile);
    const cell = mapHit(this.boxes.map, at);
    if (cell && cell.row < store.rows) {
      selection.pick(cell.row + 1);
      selection.set({ key: cell.key });
    } else this.pickKey(at);
  }

  /** A click on the arcs chooses the key. @param {{x: number, y: number}} at */
  pickKey(at) {
    const key = this.keyAt(at);
    if (key !== null) this.app.selection.set({ key });
  }

  /** @param {{x: number, y: number}} at */
  keyAt(at) {
    if (!this.boxes) return null;
    const { map } = this.boxes;
    const key = Math.floor(((at.x - map.x) / map.size) * map.extent);
    const inside = at.y > map.y + map.size && at.y < map.y + map.size + ARCS + KEYS;
    return inside && key >= 0 && key <= this.app.selection.row ? key : null;
  }

  /** @param {PointerEvent} event */
  onHover(event) {
    const { store, tip } = this.app;
    this.panel.surface.unmark();
    if (!this.boxes || !store.begin) return;
    const at = this.panel.surface.point(event);
    const tile = mosaicHit(this.boxes.mosaic, at, store.begin.model.heads);
    const cell = mapHit(this.boxes.map, at);
    const key = this.keyAt(at);
    this.panel.canvasHost.style.cursor = tile || cell || key !== null ? "pointer" : "";
    if (tile) tip.show(event, [`Layer ${tile.layer} · head ${tile.head}`, "Click to see this head"]);
    else if (cell && cell.row < store.rows) this.hoverCell(event, cell);
    else if (key !== null) tip.show(event, this.aboutCell(this.app.selection.row, key));
    else tip.hide();
  }

  /** @param {PointerEvent} event @param {{row: number, key: number}} cell */
  hoverCell(event, cell) {
    const { map } = /** @type {NonNullable<typeof this.boxes>} */ (this.boxes);
    const side = Math.max(3, map.size / map.extent);
    const step = map.size / map.extent;
    const pen = this.panel.surface.begin("over");
    pen.strokeStyle = this.app.palette.colors.ink;
    pen.strokeRect(map.x + cell.key * step - 0.5, map.y + cell.row * step - 0.5, side + 1, side + 1);
    this.app.tip.show(event, this.aboutCell(cell.row, cell.key));
    if (this.app.store.finished) this.app.restOn(`row ${cell.row}`, () => this.fetchRow(event, cell));
  }

  /** The pointer rests: get the exact row. @param {PointerEvent} event @param {{row: number, key: number}} cell */
  fetchRow(event, cell) {
    const { store, selection, tip } = this.app;
    const { layer, head } = selection;
    if (store.heads.wantRow(layer, head, cell.row)) return;
    const poll = () => {
      if (tip.node.hidden) return;
      if (store.heads.find(layer, head)?.exact.has(cell.row)) tip.show(event, this.aboutCell(cell.row, cell.key));
    };
    setTimeout(poll, 60);
  }

  /** @param {number} row @param {number} key */
  aboutCell(row, key) {
    const { store, selection } = this.app;
    const head = store.heads.find(selection.layer, selection.head);
    const p = head?.exact.get(row)?.pattern[key];
    const words = `query ${row} ${quote(store.tokens[row].text)} → key ${key} ${quote(store.tokens[key].text)}`;
    if (p !== undefined) return [`${percent(p)}`, words, `exactly ${exact(p)}`];
    const cell = head ? head.map.at(0, Math.floor(row / head.map.bin), Math.floor(key / head.map.bin)) / 255 : NaN;
    return [`≈ ${percent(cell * cell)}`, words, "from the 8-bit picture"];
  }

  /** @param {import('./live.js').View} view */
  paint(view) {
    if (!view.begin || !view.store.rows) return;
    this.judge(view);
    if (this.panel.pictured) this.picture(view);
  }

  /** @param {import('./live.js').View} view */
  write(view) {
    const { store, begin } = view;
    if (!begin) return this.panel.blank();
    this.menu.fill(begin.run, begin.heads, view.layer, view.head);
    this.layer.fill(begin.model.heads.length, view.layer, begin.model.kinds);
    this.head.fill(begin.model.heads[view.layer], view.head);
    if (!store.rows) return this.panel.say(`Reading the prompt: ${store.prefill.done} of ${store.prefill.of} tokens.`);
    this.panel.reveal();
    const help = this.kind ? kindHelp(this.kind).join("\n") : "";
    if (this.panel.summary.title !== help) this.panel.summary.title = help;
    this.panel.describe(this.summary(view));
    if (this.panel.tabular) this.panel.fillTable(this.table(view));
  }

  /** @param {import('./live.js').View} view */
  picture(view) {
    const { surface } = this.panel;
    const { palette, store } = this.app;
    const heads = /** @type {import('./types.js').Begin} */ (view.begin).model.heads;
    const boxes = this.arrange(surface.width, surface.height, heads);
    this.boxes = boxes;
    this.mosaic.paint(boxes.mosaic, store, palette, surface.ratio);
    this.map.paint(boxes.map, this.mapPicture(view, heads), palette, surface.ratio);
    const pen = surface.begin("base");
    this.mosaic.draw(pen, boxes.mosaic, surface.ratio);
    this.map.draw(pen, boxes.map);
    this.frame(pen, view, boxes, heads);
    drawSelected(pen, boxes.map, view, palette);
    drawArcs(pen, boxes.map, view, palette);
    this.record(view);
  }

  /** Borders and labels. @param {CanvasRenderingContext2D} pen @param {import('./live.js').View} view @param {NonNullable<AttentionPanel['boxes']>} boxes @param {number[]} heads */
  frame(pen, view, { mosaic, map }, heads) {
    const { surface } = this.panel;
    const { palette, store } = this.app;
    const facts = [palette.version, store.run, view.layer, view.head];
    const places = [mosaic.cell, ...heads, map.x, map.size, map.extent, store.tiles?.bin];
    const whole = { x: 0, y: 0, width: surface.width, height: surface.height };
    this.sheets.frame.draw(pen, whole, [...facts, ...places], (own) => {
      drawMosaicFrame(own, mosaic, /** @type {import('./types.js').Begin} */ (view.begin).model, palette, view);
      this.caption(own, mosaic, surface.height);
      drawMapFrame(own, map, view, palette);
    });
    const labels = labelledRows(map, view);
    const gutter = { x: map.x - GUTTER, y: map.y - ABOVE, width: GUTTER, height: map.size + 2 * ABOVE };
    this.sheets.labels.draw(pen, gutter, [palette.version, store.run, map.extent, ...labels.rows], (own) =>
      drawQueryLabels(own, map, labels, store.tokens, palette),
    );
  }

  /** The head's own map; until it is here, its tile of the mosaic. @param {import('./live.js').View} view @param {number[]} heads */
  mapPicture({ headData, store, layer, head }, heads) {
    if (headData) return { map: headData.map, plane: 0 };
    const before = heads.slice(0, layer).reduce((sum, count) => sum + count, 0);
    return { map: /** @type {import('./growing.js').PooledMaps} */ (store.tiles), plane: before + head };
  }

  /** What the tiles are, where there is room below them. @param {CanvasRenderingContext2D} pen @param {import('./mosaic.js').MosaicBox} box @param {number} height */
  caption(pen, box, height) {
    const { palette, store } = this.app;
    const y = box.y + box.cell * box.layers + 10;
    if (y + 22 > height || this.panel.surface.width < NARROW) return;
    const bin = store.tiles?.bin ?? 1;
    pen.textAlign = "left";
    pen.font = palette.font(10);
    pen.fillStyle = palette.colors.muted;
    pen.fillText("A tile per head: queries down, keys across.", box.x, y);
    if (bin > 1) pen.fillText(`A dot is the largest of ${bin} × ${bin} probabilities.`, box.x, y + 13);
  }

  /** Mosaic at the left, map and arcs at the right; one above the other where it is narrow. @param {number} width @param {number} height @param {number[]} heads */
  arrange(width, height, heads) {
    const narrow = width < Math.min(NARROW, height); // one below the other, where there is more room below than beside
    const above = narrow ? Math.floor(height * 0.42) : 0;
    const tall = height - above - ARCS - KEYS - ABOVE - 6;
    const wanted = Math.min(tall, width * 0.5 - GUTTER);
    const split = narrow ? width : width - wanted - GUTTER - 24;
    const mosaic = mosaicBox({ x: 0, y: 0, width: split, height: narrow ? above - 8 : height }, heads);
    const used = narrow ? 0 : mosaic.x + mosaic.cell * mosaic.columns + 20;
    const size = Math.floor(Math.max(24, Math.min(width - used - GUTTER - 2, tall)));
    const x = narrow ? Math.floor((width - size + GUTTER) / 2) : width - size - 2;
    return { mosaic, map: { x, y: above + ABOVE, size, extent: this.app.store.extent } };
  }

  /** Name the head from its picture, at most once per new row. @param {import('./live.js').View} view */
  judge(view) {
    const key = [
      view.store.run,
      view.layer,
      view.head,
      view.headData?.rows,
      view.headData?.rows ? "" : view.row,
    ].join();
    if (key !== this.kindKey) {
      this.kindKey = key;
      this.kind = this.findKind(view);
    }
  }

  /** @param {import('./live.js').View} view */
  findKind({ headData, pattern }) {
    if (headData && headData.map.bin === 1 && headData.rows > 4) return headKind(headData.meanShares(KIND_ROWS));
    const share = pattern && rowShares(pattern);
    return share ? headKind(share) : null;
  }

  /** @param {import('./live.js').View} view */
  summary(view) {
    const { store, row, pattern, key } = view;
    const name = `Layer ${view.layer}, head ${view.head}`;
    if (!pattern || key === null) return `${name}: fetching the row of ${quote(store.tokens[row].text)}.`;
    const best = view.strongest;
    const asks = `the query ${quote(store.tokens[row].text)} (position ${row})`;
    return (
      `${name}: ${asks} reads most from ${quote(store.tokens[best].text)} (position ${best}) with ${percent(pattern[best])}; ` +
      `entropy ${nats(entropy(pattern))} of at most ${nats(Math.log(row + 1))} over ${row + 1} keys.` +
      (this.kind ? ` On the whole (derived): ${this.kind.name}.` : "")
    );
  }

  /** @param {import('./live.js').View} view */
  record(view) {
    const { store, row, key, pattern } = view;
    this.app.drawn.attention = {
      run: store.run,
      position: view.position,
      row,
      layer: view.layer,
      head: view.head,
      key,
      exact: pattern !== null,
      probability: pattern && key !== null ? pattern[key] : null,
      entropy: pattern ? entropy(pattern) : null,
      kind: this.kind ? this.kind.name : null,
      mapRows: view.headData ? view.headData.rows : 0,
      tileBin: store.tiles ? store.tiles.bin : 1,
      boxes: this.boxes,
    };
  }

  /** @param {import('./live.js').View} view @returns {import('./tables.js').Table|null} */
  table(view) {
    const { pattern, store } = view;
    if (!pattern) return null;
    const rank = ranks(pattern);
    return {
      caption: `Layer ${view.layer}, head ${view.head}: attention of query ${view.row} ${quote(store.tokens[view.row].text)}`,
      columns: ["Key position", "Token", "Probability", "Rank"],
      rows: Array.from(pattern, (p, key) => [key, visible(store.tokens[key].text), exact(p), rank[key]]),
      mark: view.key ?? undefined,
      text: 2,
    };
  }
}

/** What the name means, and that we made it up. @param {typeof KINDS[0]} kind @returns {string[]} */
function kindHelp(kind) {
  return [
    `${kind.name}: ${kind.means}`,
    "Derived by us from this head's map (mean over its latest rows), not told by the model. The first rule that holds:",
    ...KINDS.map((k) => `${k.name}: ${k.means}`),
  ];
}

/** Rank of each entry, the largest first. @param {Float32Array} values */
function ranks(values) {
  const out = new Uint32Array(values.length);
  strongest(values, values.length).forEach((index, rank) => (out[index] = rank + 1));
  return out;
}
