// @ts-check
/** KV cache: bytes as they grow, what stands in each position, heads kept against heads that ask. */
import { el, setText } from "./dom.js";
import { byteEnd, formulaBytes, formulaText, GrowthLine, keptNumbers, measuredAt, total } from "./cache_math.js";
import {
  drawAxes,
  drawGlyph,
  drawGrowth,
  drawHeat,
  drawHeatLabels,
  drawShared,
  HeatPicture,
  heatBoxes,
} from "./cache_drawing.js";
import { bytes, count, exact, plural, quote, visible } from "./format.js";
import { Panel } from "./panel.js";
import { Sheet } from "./surface.js";

const EMPTY =
  "The memory of the run will grow here: the bytes of keys and values, layer by layer and position by position.";

const WHICH = /** @type {const} */ (["k", "v"]);

export class CachePanel {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.panel = new Panel({ name: "KV cache", id: "cache", empty: EMPTY, ...app.hooks });
    this.kind = el("span.lv-badge");
    this.shared = el("span.lv-badge.lv-shared");
    this.panel.controls.append(this.kind, this.shared);
    this.formula = el("span.lv-formula");
    this.measured = el("span.lv-measured");
    this.panel.extra.append(this.formula, this.measured);
    this.sheet = new Sheet();
    this.line = new GrowthLine();
    this.pictures = { k: new HeatPicture(), v: new HeatPicture() };
    /** @type {ReturnType<CachePanel['arrange']>|null} */
    this.boxes = null;
    /** @type {ReturnType<CachePanel['facts']>|null} */
    this.told = null;
    this.listen();
  }

  listen() {
    const host = this.panel.canvasHost;
    host.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.onHover(event));
    host.addEventListener("pointerleave", () => this.app.tip.hide());
    host.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const hit = this.hit(this.panel.surface.point(event));
      if (hit && hit.position < this.app.store.rows) this.app.selection.pick(hit.position + 1);
    });
  }

  /** What lies under the pointer. @param {{x: number, y: number}} at */
  hit(at) {
    if (!this.boxes) return null;
    for (const box of [this.boxes.k, this.boxes.v, this.boxes.growth]) {
      const across = (at.x - box.x) / box.width;
      const down = (at.y - box.y) / box.height;
      if (across < 0 || across >= 1 || down < 0 || down >= 1) continue;
      return { box, position: Math.floor(across * this.app.store.extent), layer: Math.floor(down * (box.layers || 1)) };
    }
    return null;
  }

  /** @param {PointerEvent} event */
  onHover(event) {
    const { store, tip } = this.app;
    const hit = this.hit(this.panel.surface.point(event));
    if (!hit || !store.begin || hit.position >= store.rows) return tip.hide();
    const token = `position ${hit.position} ${quote(store.tokens[hit.position].text)}`;
    if (hit.box === this.boxes?.growth) {
      const n = hit.position + 1;
      return tip.show(event, [
        bytes(formulaBytes(store.begin, n)),
        `keys and values of ${plural(n, "position")}`,
        `up to ${token}`,
      ]);
    }
    const which = hit.box === this.boxes?.k ? "k" : "v";
    const value = store.norms?.[which].row(hit.position)[hit.layer] ?? 0;
    const what = which === "k" ? "key" : "value";
    tip.show(event, [`rms of the ${what} ${value.toFixed(3)}`, `layer ${hit.layer} · ${token}`]);
  }

  /** @param {import('./live.js').View} view */
  paint(view) {
    const { begin, store } = view;
    this.told = begin && store.cache ? this.facts(view, begin) : null;
    if (!this.told || !begin) return;
    this.record(view, this.told);
    if (this.panel.pictured) this.picture(view, begin, this.told);
  }

  /** @param {import('./live.js').View} view */
  write(view) {
    const { begin, store } = view;
    const facts = this.told;
    this.panel.extra.hidden = !begin || !store.cache;
    if (!begin) return this.panel.blank();
    setText(this.kind, `${begin.cache.kind} · ${begin.cache.dtype}`);
    setText(this.shared, sharedWords(begin, this.app));
    this.shared.title = sharedPlace(store);
    if (!facts)
      return this.panel.say(`Reading the prompt: ${store.prefill.done} of ${store.prefill.of} positions are stored.`);
    this.panel.reveal();
    this.panel.describe(facts.summary);
    setText(this.formula, `${formulaText(begin, facts.positions)} = ${count(facts.formula)}\u00a0B`);
    setText(this.measured, facts.comparison);
    this.measured.classList.toggle("lv-agrees", facts.agree);
    if (this.panel.tabular) this.panel.fillTable(this.table(view, begin, facts));
  }

  /** Numbers of the selected moment. @param {import('./live.js').View} view @param {import('./types.js').Begin} begin */
  facts(view, begin) {
    const positions = view.row + 1;
    const formula = formulaBytes(begin, positions);
    const at = /** @type {import('./types.js').CacheSize} */ (measuredAt(view.store.cacheLog, positions));
    const measured = total(at.k) + total(at.v);
    const agree = measured === formulaBytes(begin, at.positions);
    const { k, v } = { k: (total(at.k) / at.positions) * positions, v: (total(at.v) / at.positions) * positions };
    const where = at.positions === positions ? "" : ` at ${count(at.positions)} positions`;
    const comparison = `measured ${count(measured)}\u00a0B${where}: ${agree ? "they agree" : "they differ"}`;
    const facts = {
      positions,
      formula,
      measured,
      measuredPositions: at.positions,
      agree,
      k,
      v,
      reserved: at.reserved,
      states: at.states,
      comparison,
    };
    return { ...facts, summary: this.summary(view, begin, facts) };
  }

  /** @param {import('./live.js').View} view @param {import('./types.js').Begin} begin @param {{positions: number, k: number, v: number, reserved: number, states: number}} facts */
  summary(view, begin, { positions, k, v, reserved, states }) {
    const [heads, kept] = [begin.model.heads[view.layer], begin.model.kv_heads[view.layer]];
    const share = kept < heads ? `, ${kept} KV heads serve ${heads} query heads` : `, one KV head per query head`;
    const room = reserved > k + v ? `; ${bytes(reserved)} are reserved` : "";
    return (
      `With ${plural(positions, "position")} the cache holds ${bytes(k + v)}, ${bytes((k + v) / positions)} a token` +
      ` (${bytes(k)} K and ${bytes(v)} V)${share}${room}${this.others(begin, states)}.`
    );
  }

  /** What layers without keys and values keep instead. @param {import('./types.js').Begin} begin @param {number} states */
  others({ model }, states) {
    const without = model.kv_heads.filter((heads) => !heads).length;
    if (!without && !states) return "";
    const holders = without
      ? plural(without, "layer without keys and values", "layers without keys and values")
      : "States beside attention";
    return states ? `; ${holders} hold ${bytes(states)} of states, which do not grow` : `; ${holders} hold nothing`;
  }

  /** @param {number} width @param {number} height @param {number} layers */
  arrange(width, height, layers) {
    const upper = Math.floor(Math.min(height * 0.5, 170));
    const split = width < 420 ? width : Math.floor(width * 0.66);
    const glyph = { x: split + 16, y: 0, width: width - split - 16, height: upper };
    const growth = { x: 56, y: 18, width: split - 60, height: upper - 34, layers: 0 };
    return { growth, glyph, ...heatBoxes({ x: 0, y: upper + 4, width, height: height - upper - 4 }, layers) };
  }

  /** @param {import('./live.js').View} view @param {import('./types.js').Begin} begin @param {ReturnType<CachePanel['facts']>} facts */
  picture(view, begin, facts) {
    const { surface } = this.panel;
    const { palette, store } = this.app;
    const boxes = this.arrange(surface.width, surface.height, begin.model.heads.length);
    this.boxes = boxes;
    const pen = surface.begin("base");
    const end = byteEnd(Math.max(facts.reserved, facts.formula));
    const line = this.line.follow(store.cacheLog);
    const growth = { line, facts, end, extent: store.extent, prompt: store.promptLength, palette };
    for (const which of WHICH) if (store.norms) this.pictures[which].paint(store.norms[which], store, palette);
    this.backdrop(pen, view, boxes, growth);
    drawGrowth(pen, boxes.growth, growth);
    if (!store.norms) return;
    for (const which of WHICH) {
      drawHeat(pen, boxes[which], this.pictures[which], { store, positions: facts.positions, palette });
      drawShared(pen, boxes[which], begin.branch?.shared ?? 0, store.extent, palette);
    }
  }

  /** Axes, labels, and who shares what. @param {CanvasRenderingContext2D} pen @param {import('./live.js').View} view @param {ReturnType<CachePanel['arrange']>} boxes @param {import('./cache_drawing.js').Growth} growth */
  backdrop(pen, { begin, store, layer }, boxes, growth) {
    const { surface } = this.panel;
    const { palette } = this.app;
    const heads = { query: begin?.model.heads[layer] || 1, kept: begin?.model.kv_heads[layer] || 1 };
    const highs = WHICH.map((which) => this.pictures[which].high);
    const facts = [palette.version, growth.end, growth.extent, growth.prompt, boxes.k.layers, layer];
    const whole = { x: 0, y: 0, width: surface.width, height: surface.height };
    this.sheet.draw(pen, whole, [...facts, heads.query, heads.kept, !store.norms, ...highs], (own) => {
      drawAxes(own, boxes.growth, growth);
      if (boxes.glyph.width > 90) drawGlyph(own, boxes.glyph, heads, palette);
      if (!store.norms) return;
      for (const which of WHICH) drawHeatLabels(own, boxes[which], which, this.pictures[which].high, layer, palette);
    });
  }

  /** @param {import('./live.js').View} view @param {ReturnType<CachePanel['facts']>} facts */
  record(view, facts) {
    const { positions, formula, measured, measuredPositions, agree, k, v, reserved } = facts;
    this.app.drawn.kvCache = {
      run: view.store.run,
      positions,
      k,
      v,
      total: k + v,
      formula,
      measured,
      measuredPositions,
      agree,
      reserved,
      layers: view.begin ? view.begin.model.heads.length : 0,
    };
  }

  /** @param {import('./live.js').View} view @param {import('./types.js').Begin} begin @param {{positions: number}} facts @returns {import('./tables.js').Table} */
  table(view, begin, { positions }) {
    const { heads, kv_heads: kept, head_dims: keys, value_dims: values } = begin.model;
    const token = view.store.tokens[view.row];
    const rows = heads.map((n, layer) => {
      const numbers = keptNumbers(begin.model, layer);
      const [k, v] = [numbers.k, numbers.v].map((each) => each * positions * begin.cache.element_bytes);
      const size = keys[layer] === values[layer] ? keys[layer] : `${keys[layer]} K, ${values[layer]} V`;
      const norms = [view.store.norms?.k.row(view.row)[layer] ?? 0, view.store.norms?.v.row(view.row)[layer] ?? 0];
      return [layer, n, kept[layer], size, count(k), count(v), count(k + v), ...norms.map(exact)];
    });
    const sums = heads.map((_, layer) => keptNumbers(begin.model, layer));
    const unit = positions * begin.cache.element_bytes;
    const [k, v] = [total(sums.map((each) => each.k)) * unit, total(sums.map((each) => each.v)) * unit];
    rows.push(["all", "", "", "", count(k), count(v), count(k + v), "", ""]);
    return {
      caption: `KV cache with ${plural(positions, "position")}; norms of position ${view.row} “${visible(token.text)}”`,
      columns: ["Layer", "Query heads", "KV heads", "Head size", "K bytes", "V bytes", "Both", "rms of K", "rms of V"],
      rows,
      mark: view.layer,
    };
  }
}

/** Of a branch: what it shares with the run that it continues. @param {import('./types.js').Begin} begin @param {import('./live.js').App} app */
function sharedWords(begin, { branches }) {
  const { branch } = begin;
  if (!branch?.shared) return "";
  const label = branches.node(branch.run)?.label ?? "a deleted run";
  return `${plural(branch.shared, "position")} (${bytes(formulaBytes(begin, branch.shared))}) shared with ${label}`;
}

/** Where these positions lie. @param {import('./store.js').Store} store */
function sharedPlace({ finished }) {
  const place = finished ? "lie in that run’s memory, once for both" : "are copied until this run ends, then kept once";
  return `The hatched positions were not computed again; they ${place}`;
}
