// @ts-check
/** RoPE: how q and k were turned by their positions, and which frequency pairs make their score. */
import { el, reducedMotion, setText } from "./dom.js";
import { drawBigDial, drawBigRing, drawHands, drawRings, drawShareAxis, drawShares } from "./dials.js";
import { grid, hasRest, pairFacts, shareScale, shareValues } from "./dials.js";
import { exact, percent, plain, plural, quote, signed } from "./format.js";
import { Panel } from "./panel.js";
import { decompose, scoreScale, turning } from "./rope_math.js";
import { Sheet } from "./surface.js";

const EMPTY =
  "Dials will show here how rotary embedding turns each pair of q and k by its position, and which pairs make an attention score.";
const SIDE = 148; // width of the column with the large dial
const FACT = 15; // px a line
const AXIS = 34;
const TURNING = 2400; // ms

export class RopePanel {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.panel = new Panel({ name: "RoPE", id: "rope", empty: EMPTY, ...app.hooks });
    this.keyLabel = el("span.lv-keyname");
    this.auto = el(
      "button.lv-button",
      { type: "button", title: "Back to the key that this row reads most from" },
      "Strongest key",
    );
    this.auto.addEventListener("click", () => app.selection.set({ key: null }));
    this.turn = el("button.lv-button", { type: "button", title: "Turn q and k from position 0 to theirs" }, "Turn");
    this.turn.addEventListener("click", () => this.play());
    this.panel.controls.append(this.keyLabel, this.auto, this.turn);
    this.sheet = new Sheet();
    this.phase = 1; // of the turning: 0 before rotation, 1 after
    /** @type {{dials: {x: number, y: number, r: number}[], bars: import('./dials.js').Box, n: number}|null} */
    this.boxes = null;
    /** @type {import('./rope_math.js').Decomposition|null} */
    this.parts = null;
    this.hovered = -1;
    this.listen();
  }

  listen() {
    const host = this.panel.canvasHost;
    host.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.onHover(event));
    host.addEventListener("pointerleave", () => {
      this.app.tip.hide();
      this.hover(-1);
    });
    host.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const pair = this.hit(this.panel.surface.point(event));
      if (pair >= 0) this.app.selection.set({ pair: pair === this.app.selection.pair ? null : pair });
    });
  }

  /** Show the rotation as one: every hand turns by its θ times its position. */
  play() {
    const started = performance.now();
    const frame = (/** @type {number} */ now) => {
      const part = Math.min(1, Math.max(0, (now - started) / TURNING));
      this.phase = part * part * (3 - 2 * part);
      this.panel.redraw();
      if (part < 1) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** @param {{x: number, y: number}} at @returns {number} pair under the pointer or -1 */
  hit(at) {
    if (!this.boxes || !this.parts) return -1;
    const { dials, bars, n } = this.boxes;
    const dial = dials.findIndex(({ x, y, r }) => Math.hypot(at.x - x, at.y - y) <= r + 3);
    if (dial >= 0) return dial;
    const bar = Math.floor(((at.x - bars.x) / bars.width) * n);
    const inside = at.y >= bars.y - 6 && at.y <= bars.y + bars.height + 16 && bar >= 0;
    return inside && bar < this.parts.pairs.length ? bar : -1;
  }

  /** @param {PointerEvent} event */
  onHover(event) {
    const pair = this.hit(this.panel.surface.point(event));
    this.panel.canvasHost.style.cursor = pair >= 0 ? "pointer" : "";
    this.hover(pair);
    if (pair < 0 || !this.parts) return this.app.tip.hide();
    const { row } = this.app.selection;
    const facts = pairFacts(this.parts.pairs[pair], row, this.app.view.key ?? 0);
    this.app.tip.show(event, [`Pair ${pair}: ${facts.share}`, facts.frequency, facts.turn]);
  }

  /** @param {number} pair */
  hover(pair) {
    if (pair === this.hovered) return;
    this.hovered = pair;
    this.panel.redraw();
  }

  /** @param {import('./live.js').View} view */
  paint(view) {
    const { begin, headData, key } = view;
    const table = tableOf(view);
    this.parts = null;
    const angles = view.store.heads.wantAngles(view.layer);
    if (begin && table && angles && headData && key !== null) {
      view.store.heads.wantKey(view.layer, view.head, view.row, key);
      this.parts = decompose(headData, angles, view.row, key, table, scoreScale(begin.model, view.layer));
    }
    if (this.parts && this.panel.pictured) this.picture(view, this.parts);
  }

  /** @param {import('./live.js').View} view */
  write(view) {
    const { begin } = view;
    this.turn.hidden = reducedMotion() || !begin || !begin.rope;
    this.auto.hidden = !begin || this.app.selection.key === null;
    if (!begin) return this.panel.blank();
    if (!tableOf(view)) return this.silent(view);
    setText(this.keyLabel, view.key === null ? "" : `key ${view.key} ${quote(view.store.tokens[view.key].text)}`);
    if (!this.parts) return this.wait(view);
    this.panel.reveal();
    this.panel.describe(this.summary(view, this.parts));
    this.record(view, this.parts, "");
    if (this.panel.tabular) this.panel.fillTable(this.table(view, this.parts));
  }

  /** The last picture stays until the new numbers are here: a flash of words would be harder to follow. @param {import('./live.js').View} view */
  wait(view) {
    const sentence = "Fetching the queries and keys of this head.";
    if (this.app.drawn.rope.run === view.store.run && this.boxes) this.panel.describe(sentence);
    else this.panel.say(sentence);
  }

  /** A model or a layer without rotation. @param {import('./live.js').View} view */
  silent(view) {
    const begin = /** @type {import('./types.js').Begin} */ (view.begin);
    const layer = `Layer ${view.layer} does not rotate its queries and keys (position scheme: ${begin.model.position_scheme}).`;
    const reason = begin.rope ? layer : begin.rope_reason || layer;
    setText(this.keyLabel, "");
    const elsewhere = begin.rope ? "Choose another layer to see its dials." : "";
    this.panel.say(reason, elsewhere || "The dials show for models with rotary embedding.");
    this.app.drawn.rope = { run: view.store.run, layer: view.layer, head: view.head, reason, pairs: 0 };
  }

  /** @param {import('./rope_math.js').Decomposition} parts */
  chosen(parts) {
    if (this.hovered >= 0) return this.hovered;
    const { pair } = this.app.selection;
    if (pair !== null && pair < parts.pairs.length) return pair;
    return parts.pairs.reduce((best, p) => (Math.abs(p.share) > Math.abs(parts.pairs[best].share) ? p.index : best), 0);
  }

  /** @param {import('./live.js').View} view @param {import('./rope_math.js').Decomposition} parts */
  picture(view, parts) {
    const { surface } = this.panel;
    const { palette } = this.app;
    const boxes = this.arrange(surface.width, surface.height, parts);
    const scale = shareScale(boxes.bars, shareValues(parts));
    const longest = { q: longestOf(parts.pairs, "q"), k: longestOf(parts.pairs, "k") };
    const chosen = this.chosen(parts);
    const pairs =
      this.phase === 1 ? parts.pairs : parts.pairs.map((p) => turning(p, view.row, view.key ?? 0, this.phase));
    const pen = surface.begin("base");
    this.backdrop(pen, boxes, parts, scale);
    this.mark(pen, boxes.dials[chosen], chosen);
    drawHands(pen, boxes.dials, pairs, longest, palette);
    drawBigDial(pen, boxes.big, pairs[chosen], longest, palette);
    this.facts(pen, pairs[chosen], view, boxes.big.r * 2 + 12, boxes.bars.y - 12);
    drawShares(pen, boxes.bars, parts, scale, chosen, palette);
    this.sum(pen, boxes.bars, parts);
    this.boxes = boxes;
  }

  /** Empty dials, axes and labels. @param {CanvasRenderingContext2D} pen @param {ReturnType<RopePanel['arrange']>} boxes @param {import('./rope_math.js').Decomposition} parts @param {import('./dials.js').ShareScale} scale */
  backdrop(pen, boxes, parts, scale) {
    const { surface } = this.panel;
    const { palette } = this.app;
    const { pairs } = parts;
    const fastFirst = pairs[0].theta >= pairs[pairs.length - 1].theta;
    const facts = [palette.version, boxes.n, pairs.length, fastFirst, scale.high, scale.low];
    const whole = { x: 0, y: 0, width: surface.width, height: surface.height };
    this.sheet.draw(pen, whole, facts, (own) => {
      own.lineWidth = 1;
      own.strokeStyle = palette.colors.line;
      drawRings(own, boxes.dials);
      boxes.dials.forEach((dial, i) => this.dialLabel(own, dial, i, false));
      drawBigRing(own, boxes.big, palette);
      drawShareAxis(own, boxes.bars, scale, palette);
      this.barLabels(own, boxes.bars, fastFirst, hasRest(parts));
    });
  }

  /** @param {number} width @param {number} height @param {import('./rope_math.js').Decomposition} parts */
  arrange(width, height, parts) {
    const n = parts.pairs.length;
    const tall = Math.max(40, Math.min(height * 0.27, 110));
    const bars = { x: AXIS, y: height - tall - 15, width: width - AXIS - 2, height: tall };
    const room = { width: width - SIDE, height: bars.y - 14 };
    const { columns, cell, stepX, stepY } = grid(room.width, room.height, n);
    const r = Math.max(4, Math.min(cell / 2 - 3, 34));
    const dials = parts.pairs.map((_, i) => ({
      x: SIDE + stepX * ((i % columns) + 0.5),
      y: stepY * Math.floor(i / columns) + r + 2,
      r,
    }));
    const big = Math.max(24, Math.min(SIDE / 2 - 14, 54, (bars.y - 12 - 5 * FACT - 12) / 2));
    return { dials, bars, big: { x: SIDE / 2 - 8, y: big + 2, r: big }, n: shareValues(parts).length };
  }

  /** @param {CanvasRenderingContext2D} pen @param {import('./dials.js').Dial} dial @param {number} index @param {boolean} chosen */
  dialLabel(pen, { x, y, r }, index, chosen) {
    if (r < 9) return;
    const { palette } = this.app;
    pen.textAlign = "center";
    pen.fillStyle = chosen ? palette.colors.accent : palette.colors.muted;
    pen.font = palette.font(10, chosen ? 600 : 400);
    pen.fillText(String(index), x, y + r + 7);
  }

  /** The chosen dial, over the empty one. @param {CanvasRenderingContext2D} pen @param {import('./dials.js').Dial} dial @param {number} index */
  mark(pen, dial, index) {
    pen.strokeStyle = this.app.palette.colors.accent;
    pen.lineWidth = 1.5;
    drawRings(pen, [dial]);
    this.panel.surface.erase(pen, Math.floor(dial.x - 10), Math.ceil(dial.y + dial.r + 1), 20, 12);
    this.dialLabel(pen, dial, index, true);
  }

  /** The chosen pair in words. @param {CanvasRenderingContext2D} pen @param {import('./rope_math.js').Pair} pair @param {import('./live.js').View} view @param {number} top @param {number} bottom */
  facts(pen, pair, view, top, bottom) {
    const { palette } = this.app;
    const facts = pairFacts(pair, view.row, view.key ?? 0);
    /** @type {[string, string, number][]} */
    const lines = [
      [`pair ${pair.index} ${facts.share}`, palette.colors.accent, 600],
      [facts.q, palette.colors.qText, 400],
      [facts.k, palette.colors.kText, 400],
      [facts.turn, palette.colors.muted, 400],
      ["faint: before rotation", palette.colors.muted, 400],
    ];
    pen.textAlign = "left";
    lines.slice(0, Math.floor((bottom - top) / FACT)).forEach(([text, color, weight], i) => {
      pen.fillStyle = color;
      pen.font = palette.font(11, weight);
      pen.fillText(text, 0, top + 6 + i * FACT);
    });
  }

  /** @param {CanvasRenderingContext2D} pen @param {import('./dials.js').Box} bars @param {boolean} fastFirst @param {boolean} rest */
  barLabels(pen, bars, fastFirst, rest) {
    const { palette } = this.app;
    pen.fillStyle = palette.colors.muted;
    pen.font = palette.font(10);
    pen.textAlign = "left";
    const y = bars.y + bars.height + 9;
    pen.fillText(fastFirst ? "fast" : "slow", bars.x, y);
    pen.textAlign = "right";
    pen.fillText((fastFirst ? "slow" : "fast") + (rest ? " · unrotated" : ""), bars.x + bars.width, y);
  }

  /** @param {CanvasRenderingContext2D} pen @param {import('./dials.js').Box} bars @param {import('./rope_math.js').Decomposition} parts */
  sum(pen, bars, parts) {
    const { palette } = this.app;
    pen.fillStyle = palette.colors.muted;
    pen.font = palette.font(10);
    const y = bars.y + bars.height + 9;
    pen.textAlign = "center";
    const sum = `Σ ${signed(parts.score)} = q·k × ${plain(parts.scale, 3)}`;
    const words = bars.width > 380 ? `what each pair adds to the score,  ${sum}` : sum;
    pen.fillText(words, bars.x + bars.width / 2, y);
  }

  /** @param {import('./live.js').View} view @param {import('./rope_math.js').Decomposition} parts */
  summary(view, parts) {
    const { row, key, pattern, store } = view;
    const at = /** @type {number} */ (key);
    const apart = plural(row - at, "position");
    const most = [...parts.pairs].sort((a, b) => Math.abs(b.share) - Math.abs(a.share)).slice(0, 2);
    const names = most.map((p) => `${p.index} (${signed(p.share)})`).join(" and ");
    const result = pattern ? `, which softmax turns into ${percent(pattern[at])}` : "";
    return (
      `Query ${quote(store.tokens[row].text)} (${row}) and key ${quote(store.tokens[at].text)} (${at}), ${apart} apart: ` +
      `pairs ${names} add most to the score ${signed(parts.score)}${result}.`
    );
  }

  /** @param {import('./live.js').View} view @param {import('./rope_math.js').Decomposition} parts @param {string} reason */
  record(view, parts, reason) {
    this.app.drawn.rope = {
      run: view.store.run,
      layer: view.layer,
      head: view.head,
      query: view.row,
      key: view.key,
      pairs: parts.pairs.length,
      contributions: parts.pairs.map((p) => p.share),
      rest: parts.rest,
      score: parts.score,
      scale: parts.scale,
      probability: view.pattern && view.key !== null ? view.pattern[view.key] : null,
      pair: this.chosen(parts),
      reason,
    };
  }

  /** @param {import('./live.js').View} view @param {import('./rope_math.js').Decomposition} parts @returns {import('./tables.js').Table} */
  table(view, parts) {
    const degrees = (/** @type {number} */ x) => ((x * 180) / Math.PI).toFixed(2);
    const rows = parts.pairs.map((p) => {
      const angles = [p.theta * view.row, p.theta * (view.key ?? 0)];
      const numbers = [...p.qBefore, ...p.q, ...p.kBefore, ...p.k].map(exact);
      return [p.index, p.dims.join(", "), exact(p.theta), ...angles.map(degrees), ...numbers, exact(p.share)];
    });
    if (hasRest(parts)) rows.push(["unrotated", ...new Array(12).fill(""), exact(parts.rest)]);
    rows.push(["sum", ...new Array(12).fill(""), exact(parts.score)]);
    return {
      caption: `Layer ${view.layer}, head ${view.head}: query ${view.row}, key ${view.key}; scale ${exact(parts.scale)}`,
      columns: [
        ...[
          "Pair",
          "Dimensions",
          "θ (rad)",
          "q angle (°)",
          "k angle (°)",
          "q before, x",
          "q before, y",
          "q after, x",
          "q after, y",
        ],
        ...["k before, x", "k before, y", "k after, x", "k after, y", "Adds to score"],
      ],
      rows,
      mark: this.chosen(parts),
      text: 2,
    };
  }
}

/** The frequencies of the chosen layer, where it rotates. @param {import('./live.js').View} view */
const tableOf = ({ begin, layer }) => (begin?.rope ? begin.rope.tables[begin.rope.layers[layer]] : undefined);

/** @param {import('./rope_math.js').Pair[]} pairs @param {'q'|'k'} which */
const longestOf = (pairs, which) => Math.max(...pairs.map((p) => Math.hypot(p[which][0], p[which][1])), 1e-9);
