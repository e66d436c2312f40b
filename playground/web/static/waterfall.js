// @ts-check
/**
 * The stages of one step, one row each: what is left and what went, whose rank moved, and where chance fell.
 * Every token stands in an element with `data-candidate`, its id, so that a click on it can be understood.
 */
import { el, setText } from "./dom.js";
import { count, exact, nats, percent, plural, visible } from "./format.js";
import { stageTitle } from "./ledger.js";
import { line, SVG } from "./sketches.js";

/** @typedef {import('./distribution.js').Distribution} Distribution @typedef {import('./waterfall_math.js').Fall} Fall @typedef {import('./waterfall_math.js').Fallen} Fallen @typedef {import('./waterfall_math.js').Slices} Slices @typedef {import('./waterfall_math.js').Move} Move */

const LINE = 16; // height of a token's line

/**
 * @typedef {{
 *   shown: Distribution, past: Distribution, fall: Fall|null, pastFall: Fall|null, stage: number, drawn: number,
 *   given: boolean, chance: number|null, mu: number|null, text: (id: number) => string,
 * }} Scene  `shown` may be what other settings would do, `past` is what happened; falls are null until they are here;
 * `given`: the token was not drawn but chosen by somebody; `chance` and `mu`: the numbers of XTC and mirostat
 */

export class Waterfall {
  /** @param {(stage: number) => void} choose */
  constructor(choose) {
    this.list = el("div.lv-fall-list", { role: "group", "aria-label": "Stages" });
    this.list.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const row = /** @type {HTMLElement} */ (event.target).closest("button");
      if (row) choose(Number(row.dataset.stage));
    });
    this.head = el("p.lv-fall-head");
    this.moves = el("div.lv-moves");
    this.detail = el("div.lv-fall-detail", {}, this.head, this.moves);
    this.chance = el("div.lv-chance");
    this.root = el("div.lv-fall", { hidden: true }, this.list, this.detail, this.chance);
    this.key = "";
  }

  /** @param {Scene} scene @returns {number[]} tokens that are left after the stage, as they stand in their lines */
  draw(scene) {
    this.fillList(scene);
    this.chance.replaceChildren(...chanceRows(scene)); // first: what it needs is not left for the tokens
    this.fillDetail(scene);
    const lines = /** @type {NodeListOf<HTMLElement>} */ (
      this.moves.querySelectorAll("ol:last-child > [data-candidate]")
    );
    return [...lines].map((each) => Number(each.dataset.candidate));
  }

  /** @param {Scene} scene */
  fillList({ shown, past, stage }) {
    const key = JSON.stringify(shown.stages.map(({ name, setting }) => [name, setting]));
    if (key !== this.key) {
      this.key = key;
      const heads = ["stage", "raw mass left", "tokens", "nats"].map((words) => el("span", {}, words));
      const rows = shown.stages.map((each, i) => stageRow(stageTitle(each), i));
      this.list.replaceChildren(el("div.lv-fall-row.lv-fall-heads", { "aria-hidden": "true" }, ...heads), ...rows);
    }
    shown.stages.forEach((each, i) => {
      const row = this.list.children[i + 1];
      const before = shown.stages[Math.max(0, i - 1)];
      const really = shown.whatIf ? past.stages.find(({ name }) => name === each.name) : undefined;
      row.setAttribute("aria-pressed", String(i === stage));
      row.setAttribute("aria-label", spoken(each, before, i));
      row.title = spoken(each, before, i) + (really ? `. It happened: ${plural(really.kept, "token")} left` : "");
      const [, bar, kept, entropy] = row.children;
      fillBar(/** @type {HTMLElement} */ (bar), before.mass, each.mass, really?.mass);
      setText(kept, count(each.kept));
      setText(entropy, each.entropy.toFixed(2));
      kept.classList.toggle("lv-same", i > 0 && each.kept === before.kept);
      entropy.classList.toggle("lv-same", i > 0 && Math.abs(each.entropy - before.entropy) < 0.005);
    });
  }

  /** @param {Scene} scene */
  fillDetail(scene) {
    const { shown, fall, stage, drawn, text } = scene;
    const each = shown.stages[stage];
    const before = shown.stages[Math.max(0, stage - 1)];
    const fallen = fall?.stages[stage] ?? null;
    const names = { stage, drawn, chosen: shown.chosen, kept: each.kept, keptBefore: before.kept, text };
    setText(
      this.head,
      fallen
        ? ownNumber(each, scene) + effect(each, before, stage, fallen, text)
        : `${stageTitle(each)}: looking at every token…`,
    );
    this.moves.replaceChildren(...(fallen ? ladders(fallen, this.room, names) : []));
  }

  /** Lines of tokens that fit. */
  get room() {
    return Math.max(3, Math.min(12, Math.floor((this.detail.clientHeight - this.head.clientHeight - 4) / LINE)));
  }
}

/** @param {string} title @param {number} stage */
const stageRow = (title, stage) =>
  el(
    "button.lv-fall-row",
    { type: "button", "data-stage": stage },
    el("span", {}, title),
    el("span.lv-fall-bar", {}, el("i.lv-lost"), el("i.lv-left"), el("i.lv-really")),
    el("span"),
    el("span"),
  );

/** @param {HTMLElement} bar @param {number} before @param {number} after @param {number|undefined} really */
function fillBar(bar, before, after, really) {
  const [lost, left, mark] = /** @type {HTMLElement[]} */ ([...bar.children]);
  lost.style.width = `${100 * before}%`;
  left.style.width = `${100 * after}%`;
  mark.hidden = really === undefined;
  mark.style.left = `${100 * (really ?? 0)}%`;
}

/** @param {import('./types.js').Stage} stage @param {import('./types.js').Stage} before @param {number} index */
function spoken(stage, before, index) {
  const left = `${plural(stage.kept, "token")} with ${percent(stage.mass)} of the raw mass`;
  if (!index) return `raw: ${left}, entropy ${nats(stage.entropy)}`;
  const gone = before.kept - stage.kept;
  const entropy = `entropy ${before.entropy.toFixed(2)} to ${nats(stage.entropy)}`;
  return `${stageTitle(stage)}: ${gone ? `removed ${count(gone)}, ` : ""}${left} left, ${entropy}`;
}

/** The number of the step that a stage went by. @param {import('./types.js').Stage} stage @param {Scene} scene */
function ownNumber({ name, setting }, { chance, mu }) {
  if (name === "mirostat" && mu !== null) return `Allowed ${mu.toFixed(2)} bits. `;
  if (name !== "xtc_probability" || chance === null) return "";
  const acts = chance <= Number(setting);
  return `Its random number ${chance.toFixed(2)} is ${acts ? "not " : ""}above ${setting}: it ${acts ? "acts" : "rests"}. `;
}

/** What a stage did, in a sentence. @param {import('./types.js').Stage} stage @param {import('./types.js').Stage} before @param {number} index @param {Fallen} fallen @param {(id: number) => string} text */
function effect(stage, before, index, fallen, text) {
  if (!index) return `The model’s own distribution over ${plural(stage.kept, "token")}.`;
  const moved = `entropy ${before.entropy.toFixed(2)} → ${nats(stage.entropy)}`;
  const { count: gone, ids } = fallen.lost;
  if (gone) {
    const names = ids.slice(0, 3).map((id) => visible(text(id)));
    const more = gone > names.length ? ", …" : "";
    return `Removed ${plural(gone, "token")}, ${percent(before.mass - stage.mass)} of the raw mass (${names.join(", ")}${more}); ${moved}.`;
  }
  const climbed = fallen.moves.filter(({ from, to }) => from !== to).length;
  return `Removed nothing; ${climbed ? "ranks moved" : "ranks stay"}; ${moved}.`;
}

/** @typedef {{stage: number, drawn: number, chosen: number, kept: number, keptBefore: number, text: (id: number) => string}} Names */

/** The ranks before and after, with a line between the two places of a token. @param {Fallen} fallen @param {number} room @param {Names} names */
function ladders(fallen, room, names) {
  const right = placed(fallen, "to", room - 1, names.drawn);
  const after = ladder(right, "to", names, names.kept);
  if (!names.stage) return [after];
  const left = placed(fallen, "from", room - 1, names.drawn);
  const links = left.flatMap((move, i) => {
    const j = right.indexOf(move);
    return j < 0 ? [] : [link(i, j, move.id === names.drawn)];
  });
  const height = room * LINE;
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({
    viewBox: `0 0 24 ${height}`,
    width: 24,
    height,
    "aria-hidden": "true",
  })) {
    svg.setAttribute(key, String(value));
  }
  svg.append(...links);
  return [ladder(left, "from", names, names.keptBefore), svg, after];
}

/** The most likely of one side; the drawn token and a few of the removed always among them. @param {Fallen} fallen @param {'from'|'to'} side @param {number} room @param {number} drawn */
function placed({ moves, lost }, side, room, drawn) {
  const sorted = moves.filter((move) => move[side] > 0).sort((a, b) => a[side] - b[side] || a.id - b.id);
  const gone = side === "from" ? lost.ids.slice(0, 3) : [];
  const wanted = new Set([drawn, ...gone]);
  const must = sorted.filter(({ id }, i) => i >= room - wanted.size && wanted.has(id));
  const most = sorted.slice(0, Math.max(0, room - must.length));
  return [...most, ...must.filter((move) => !most.includes(move))];
}

/** @param {number} from @param {number} to @param {boolean} drawn */
const link = (from, to, drawn) =>
  line(
    `M0 ${(from + 0.5) * LINE}C12 ${(from + 0.5) * LINE} 12 ${(to + 0.5) * LINE} 24 ${(to + 0.5) * LINE}`,
    drawn ? "drawn" : from === to ? "stays" : "moves",
  );

/** One side; what has no line of its own is one line together. @param {Move[]} moves @param {'from'|'to'} side @param {Names} names @param {number} kept tokens there are on this side */
function ladder(moves, side, { stage, drawn, chosen, text }, kept) {
  const lines = moves.map((move) => {
    const gone = side === "from" && !move.to;
    const name = visible(text(move.id));
    const p = side === "from" ? move.before : move.after;
    const row = el(
      "li",
      { "data-candidate": move.id, title: fate(move, stage, name) },
      el("span.lv-rank", {}, String(move[side])),
      el(gone ? "s" : "span", {}, name),
      el("span.lv-p", {}, percent(p)),
    );
    row.classList.toggle("lv-drawn", move.id === drawn);
    row.classList.toggle("lv-chosen", move.id === chosen);
    row.classList.toggle("lv-gone", gone);
    return row;
  });
  const others = kept - moves.length;
  const mass = 1 - moves.reduce((sum, move) => sum + (side === "from" ? move.before : move.after), 0);
  if (others > 0)
    lines.push(
      el("li.lv-others", {}, el("span", {}, plural(others, "other")), el("span.lv-p", {}, percent(Math.max(0, mass)))),
    );
  return el("ol", { "aria-label": side === "from" ? "Before" : "After" }, ...lines);
}

/** @param {Move} move @param {number} stage @param {string} name */
function fate(move, stage, name) {
  if (!stage) return `${name}: rank ${move.to}, ${percent(move.after)}`;
  if (!move.to) return `${name}: removed; it was rank ${move.from} with ${percent(move.before)}`;
  const moved = move.from === move.to ? `rank ${move.to}` : `rank ${move.from} to ${move.to}`;
  return `${name}: ${moved}, ${percent(move.before)} to ${percent(move.after)}`;
}

/** The draw: the number u on the cumulative bar, as the settings shown would have it and as it was. @param {Scene} scene */
function chanceRows({ shown, fall, pastFall, drawn, given, text }) {
  const past = pastFall?.slices ?? null;
  const now = shown.whatIf ? (fall?.slices ?? null) : past;
  if (!past && !now) {
    const loading = shown.whatIf ? !fall : !pastFall;
    const words = given
      ? "Given: nothing was drawn here."
      : "Greedy: nothing is drawn, the most likely token is taken.";
    return [el("p", {}, loading ? "" : words)];
  }
  const shownSlices = /** @type {Slices} */ (now ?? past);
  const rows = [el("p", {}, sentence(shownSlices, shown, text))];
  if (shown.whatIf && now) rows.push(track(now, shown.chosen, text, "what if"));
  if (past) rows.push(track(past, drawn, text, shown.whatIf ? "happened" : ""));
  return rows;
}

/** @param {Slices} slices @param {Distribution} shown @param {(id: number) => string} text */
function sentence(slices, { whatIf, chosen }, text) {
  const at = slices.ids.indexOf(chosen);
  const from = slices.starts[at];
  const where = `${from.toFixed(4)} to ${(from + slices.sizes[at]).toFixed(4)}`;
  const verb = whatIf ? "would fall" : "fell";
  return `The random number u = ${slices.uniform.toFixed(4)} ${verb} into ${visible(text(chosen))}, ${where}; tokens in order of id.`;
}

/** @param {Slices} slices @param {number} hit @param {(id: number) => string} text @param {string} label */
function track(slices, hit, text, label) {
  const parts = slices.ids.map((id, i) => {
    const name = visible(text(id));
    const part = el(
      "i",
      {
        "data-candidate": id,
        title: `${name}: ${percent(slices.sizes[i])}, from ${slices.starts[i].toFixed(4)}`,
        style: { left: `${100 * slices.starts[i]}%`, width: `${100 * slices.sizes[i]}%` },
      },
      slices.sizes[i] > 0.045 ? name : "",
    );
    part.classList.toggle("lv-hit", id === hit);
    return part;
  });
  const rest = slices.count - slices.ids.length;
  const mass = 1 - slices.sizes.reduce((sum, size) => sum + size, 0);
  const title = rest > 0 ? `${plural(rest, "more token")} with ${percent(Math.max(0, mass))} lie between` : "";
  const slots = el("div.lv-track", { title }, ...parts, el("b", { style: { left: `${100 * slices.uniform}%` } }));
  return el("div.lv-draw", {}, el("span", {}, label), slots);
}

/** The stages as a table. @param {Distribution} shown @param {Fall|null} fall @param {number} drawn @returns {import('./tables.js').Table} */
export function fallTable(shown, fall, drawn) {
  const whole = shown.stages[0].kept;
  const mass = shown.stages.map((stage) => (stage.kept === whole ? 1 : stage.mass)); // all of it, without its rounding
  const rows = shown.stages.map((stage, i) => {
    const at = Math.max(0, i - 1);
    const move = fall?.stages[i]?.moves.find(({ id }) => id === drawn);
    const numbers = [stage.kept, shown.stages[at].kept - stage.kept, exact(mass[i]), exact(mass[at] - mass[i])];
    const own = move ? [move.to || "removed", exact(move.after)] : ["", ""];
    return [stageTitle(stage), ...numbers, exact(stage.entropy), ...own];
  });
  return {
    caption:
      "Tokens and raw probability mass left and removed, entropy in nats; the drawn token's rank and probability",
    columns: ["Stage", "Left", "Removed", "Mass left", "Mass removed", "Nats", "Rank", "Probability"],
    rows,
  };
}
