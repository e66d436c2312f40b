// @ts-check
/** Next token: candidates on their way through the stages, what removed them, and what other settings would do. */
import { el, setText } from "./dom.js";
import { greedyFall, happened, recut } from "./distribution.js";
import { count, exact, nats, percent, plural, quote, visible } from "./format.js";
import { columnsOf, drawRows, stageName, stageTitle, ROW } from "./ledger.js";
import { Panel } from "./panel.js";
import { Waterfall, fallTable } from "./waterfall.js";

const EMPTY =
  "The most likely next tokens will show here: how each stage of sampling reshapes them, which ones it removes, and which one was drawn.";
const WAIT = 80; // ms of rest before the whole vocabulary is fetched

export class NextTokenPanel {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.panel = new Panel({ name: "Next token", id: "next", empty: EMPTY, ...app.hooks });
    this.badge = el("span.lv-badge.lv-whatif", { hidden: true }, "What if");
    this.back = el(
      "button.lv-button",
      { type: "button", hidden: true, "aria-label": "Back to what happened", title: "Back to what happened" },
      "Back",
    );
    this.back.addEventListener("click", () => app.whatIf(null));
    this.staged = false; // stage by stage, instead of candidate by candidate
    this.views = el(
      "div.lv-views",
      { role: "group", "aria-label": "View" },
      ...["Candidates", "Stages"].map((name, i) => this.viewButton(name, Boolean(i))),
    );
    this.panel.controls.append(this.views, this.badge, this.back);
    this.waterfall = new Waterfall((stage) => app.selection.set({ stage }));
    this.panel.body.append(this.waterfall.root);
    /** What each stage really did, by run and step. @type {Map<string, import('./waterfall_math.js').Fall>} */
    this.falls = new Map();
    this.stages = el("div.lv-stages", { role: "group", "aria-label": "Stage shown by the bars" });
    this.panel.body.prepend(this.stages);
    this.axis = el("span.lv-axis", {}, el("span", {}, "0"), el("span"));
    this.stageKey = "";
    /** @type {import('./distribution.js').Distribution|null} */
    this.shown = null;
    this.stage = 0; // whose probabilities the bars show
    this.end = 1; // of the bars' axis
    this.listen();
  }

  /** @param {string} name @param {boolean} staged */
  viewButton(name, staged) {
    const button = el("button.lv-button", { type: "button", "aria-pressed": String(!staged) }, name);
    button.addEventListener("click", () => {
      this.staged = staged;
      for (const each of this.views.children) each.setAttribute("aria-pressed", String(each === button));
      this.panel.draw();
    });
    return button;
  }

  listen() {
    const host = this.panel.canvasHost;
    host.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.onHover(event));
    host.addEventListener("pointerleave", () => this.app.tip.hide());
    this.stages.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const button = /** @type {HTMLElement} */ (event.target).closest("button");
      if (button) this.app.selection.set({ stage: Number(button.dataset.stage) });
    });
  }

  /** @param {PointerEvent|MouseEvent} event */
  candidateAt(event) {
    const index = Math.floor(this.panel.surface.point(event).y / ROW);
    return this.shown && index >= 0 ? this.visibleRows(this.shown)[index] : undefined;
  }

  /** @param {PointerEvent} event */
  onHover(event) {
    const { shown } = this;
    const candidate = this.candidateAt(event);
    if (!shown || !candidate) return this.app.tip.hide();
    const lines = shown.stages.map((stage, i) => `${stageTitle(stage)}: ${percent(candidate.probabilities[i])}`);
    const text = this.app.store.text(candidate.id);
    this.app.tip.show(event, [`${visible(text)}  ·  id ${candidate.id}`, ...lines, ...this.fate(candidate, shown)]);
  }

  /** @param {import('./distribution.js').Candidate} candidate @param {import('./distribution.js').Distribution} shown */
  fate(candidate, shown) {
    const lines = [];
    if (candidate.removedBy > 0) lines.push(`removed by ${stageTitle(shown.stages[candidate.removedBy])}`);
    if (candidate.drawn) lines.push("taken in this run");
    else lines.push("click to go on with it");
    if (shown.whatIf && candidate.chosen) lines.push("what the same random number picks under these settings");
    return lines;
  }

  /** @param {import('./live.js').View} view */
  paint(view) {
    const { begin, step } = view;
    if (view.waiting) return; // what is drawn stays for the moment until they come
    this.shown = begin && step ? this.distribution(view, step, begin) : null;
    if (!this.shown || !step) return;
    this.stage = Math.min(this.app.selection.stage ?? Infinity, this.shown.stages.length - 1);
    this.record(view, step, this.shown, this.stage);
    if (this.panel.pictured && !this.staged) this.picture(this.shown, this.stage);
  }

  /** @param {import('./live.js').View} view */
  write(view) {
    const { begin, step } = view;
    if (view.waiting) return this.wait(view);
    this.stages.hidden = !step || this.panel.tabular || this.staged;
    this.waterfall.root.hidden = !step || this.panel.tabular || !this.staged;
    this.back.hidden = !view.whatIf || !step;
    this.badge.hidden = this.back.hidden || Boolean(this.shown?.foreign);
    if (!begin || view.position < 0) return this.panel.blank();
    const { shown } = this;
    if (!step || !shown) return this.given(view);
    this.panel.reveal();
    this.panel.describe(this.summary(view, step, shown));
    if (this.staged) return this.writeStages(view, step, shown);
    this.fillStages(shown, this.stage);
    if (this.panel.tabular) this.panel.fillTable(this.table(step, shown));
  }

  /** Stage by stage. @param {import('./live.js').View} view @param {import('./types.js').ToldStep} step @param {import('./distribution.js').Distribution} shown */
  writeStages(view, step, shown) {
    const past = happened(step, view.vocabulary);
    const pastFall = this.wantFall(view, step, past);
    const fall = shown.whatIf ? (shown.fall?.() ?? null) : pastFall;
    this.app.drawn.nextToken.fall = fall;
    this.app.drawn.nextToken.pastFall = pastFall;
    if (this.panel.tabular) return this.panel.fillTable(fallTable(shown, fall, step.id));
    this.panel.canvasHost.hidden = true;
    const text = (/** @type {number} */ id) => this.app.store.text(id);
    const given = Boolean(step.forced);
    const { id: drawn, chance, mu } = step;
    const scene = { shown, past, fall, pastFall, stage: this.stage, drawn, given, chance, mu, text };
    const ids = this.waterfall.draw(scene);
    this.app.drawn.nextToken.rows = ids.map((id) => ({ id, drawn: id === step.id }));
  }

  /** What each stage really did, asked for once the selection rests. @param {import('./live.js').View} view @param {import('./types.js').ToldStep} step @param {import('./distribution.js').Distribution} past */
  wantFall({ store }, step, past) {
    const key = `${store.run} ${step.index}`;
    const fall = this.falls.get(key);
    if (fall) return past.stages.at(-1)?.name === "greedy" ? greedyFall(fall, past.stages, step.id) : fall;
    if (this.app.selection.follow && !store.finished) return null; // a running generation is not to be slowed
    this.app.restOn(`waterfall ${key}`, () =>
      store.fetchOnce(`waterfall ${step.index}`, "waterfall", { step: step.index }, (answer) => {
        if (this.falls.size > 64) this.falls.clear();
        this.falls.set(key, answer);
      }),
    );
    return null;
  }

  /** The step's details are on their way, or were asked for in vain. @param {import('./live.js').View} view */
  wait(view) {
    const { store } = view;
    if (store.failed !== "details" || !store.note) return;
    this.panel.say(`What led to step ${view.position - store.promptLength} could not be fetched.`, store.note);
  }

  /** A token of the prompt. @param {import('./live.js').View} view */
  given(view) {
    const { store, position } = view;
    const hint = "Select a later token to see the distribution it was drawn from.";
    const sentence = `${quote(store.tokens[position].text)} was given by the prompt, not drawn.`;
    this.panel.say(sentence, store.steps.length ? hint : "The first draw follows.");
    const step = view.position - store.promptLength;
    this.app.drawn.nextToken = { run: store.run, step, given: true, rows: [] };
  }

  /** @param {import('./live.js').View} view @param {import('./types.js').ToldStep} step @param {import('./types.js').Begin} begin */
  distribution(view, step, begin) {
    const vocabulary = begin.model.vocab_size;
    if (!view.whatIf) return happened(step, vocabulary);
    const { store } = view;
    const logits = store.logits.get(step.index) || null;
    // a running generation must not be slowed by questions about every passing token
    if (!logits && !(this.app.selection.follow && !store.finished)) {
      this.app.restOn(`logits ${step.index}`, () => store.wantLogits(step.index), WAIT);
    }
    const context = {
      ids: store.tokens.slice(0, view.position).map((token) => token.id),
      prompt: begin.prompt_length,
      room: begin.planned - view.position,
      ends: begin.end_ids,
      text: (/** @type {number} */ id) => store.text(id),
    };
    const own = store.eraOf(step.index)?.decoding ?? begin.decoding;
    return recut(step, { ...own, ...view.whatIf }, context, logits, vocabulary);
  }

  /** @param {import('./distribution.js').Distribution} shown @param {number} stage */
  fillStages(shown, stage) {
    const { width } = this.panel.surface;
    const columns = columnsOf(width || this.panel.body.clientWidth, shown.stages.length);
    const key = JSON.stringify([shown.stages.map((s) => [s.name, s.setting]), columns, shown.whatIf]);
    if (key !== this.stageKey) {
      this.stageKey = key;
      this.stages.replaceChildren(...shown.stages.map((s, i) => stageButton(s, i, columns)), this.axis);
      this.axis.style.left = `${columns.bar}px`;
      this.axis.style.width = `${columns.barWidth}px`;
      this.stages.classList.toggle("lv-row", !columns.stages);
    }
    shown.stages.forEach((s, i) => {
      const button = this.stages.children[i];
      button.setAttribute("aria-pressed", String(i === stage));
      setText(button.lastChild, i === 0 || columns.step < 56 ? `${count(s.kept)}` : `${count(s.kept)} left`);
      button.title = `${stageTitle(s)}: ${plural(s.kept, "token")} left with ${percent(s.mass)} of the raw mass, entropy ${nats(s.entropy)}`;
    });
    setText(this.axis.lastChild, percent(this.end));
  }

  /** As many candidates as fit, the drawn and the chosen one always among them. @param {import('./distribution.js').Distribution} shown */
  visibleRows(shown) {
    const room = Math.max(2, Math.floor(this.panel.surface.height / ROW) - 1);
    const sorted = [...shown.candidates].sort((a, b) => b.raw - a.raw);
    const must = sorted.filter((c, i) => i >= room && (c.drawn || c.chosen));
    return [...sorted.slice(0, Math.max(0, room - must.length)), ...must];
  }

  /** @param {import('./distribution.js').Distribution} shown @param {number} stage */
  picture(shown, stage) {
    const { surface } = this.panel;
    const rows = this.visibleRows(shown);
    const columns = columnsOf(surface.width, shown.stages.length);
    const hidden = shown.candidates.filter((c) => !rows.includes(c));
    const mass = shown.rest.mass.map((m, i) => m + hidden.reduce((sum, c) => sum + c.probabilities[i], 0));
    const rest = { count: shown.rest.count + hidden.length, mass };
    const high = Math.max(...rows.map((c) => Math.max(c.probabilities[stage], c.raw, c.happened)), 0.05);
    this.end = barEnd(high);
    drawRows(surface.begin("base"), {
      rows,
      rest,
      stage,
      columns,
      width: surface.width,
      end: this.end,
      shown,
      palette: this.app.palette,
      text: (id) => this.app.store.text(id),
    });
    Object.assign(this.app.drawn.nextToken, {
      rows: rows.map((c) => this.told(c, shown, stage)),
      rest: { count: rest.count, mass: mass[stage] },
    });
  }

  /** @param {import('./distribution.js').Candidate} c @param {import('./distribution.js').Distribution} shown @param {number} stage */
  told(c, shown, stage) {
    return {
      id: c.id,
      text: this.app.store.text(c.id),
      raw: c.raw,
      probability: c.probabilities[stage],
      final: c.probabilities[c.probabilities.length - 1],
      happened: c.happened,
      removedBy: c.removedBy > 0 ? shown.stages[c.removedBy].name : null,
      drawn: c.drawn,
      chosen: c.chosen,
    };
  }

  /** @param {import('./live.js').View} view @param {import('./types.js').ToldStep} step @param {import('./distribution.js').Distribution} shown @param {number} stage */
  record(view, step, shown, stage) {
    const stages = shown.stages.map(({ name, setting, kept, mass, entropy }) => ({
      name,
      setting,
      kept,
      mass,
      entropy,
    }));
    this.app.drawn.nextToken = {
      ...this.app.drawn.nextToken,
      run: view.store.run,
      step: step.index,
      given: false,
      stage,
      stages,
      whatIf: shown.whatIf,
      whole: shown.whole,
      drawn: step.id,
      chosen: shown.chosen,
    };
  }

  /** @param {import('./live.js').View} view @param {import('./types.js').ToldStep} step @param {import('./distribution.js').Distribution} shown */
  summary(view, step, shown) {
    const verb = step.forced ? "was given" : step.uniform === null ? "took" : "drew";
    const drew = `Step ${step.index} ${verb} ${quote(step.text)} with ${percent(step.probability)} (rank ${step.rank + 1} of ${count(view.vocabulary)})`;
    if (shown.foreign) {
      const stage = stageTitle({ name: shown.foreign, setting: null });
      return `This step cannot be re-cut with ${stage}, because its run threw no random number for it: what happened is shown. ${drew}.`;
    }
    const last = shown.stages[shown.stages.length - 1];
    const left = `${plural(last.kept, "token")} with ${percent(last.mass)} of the raw mass`;
    if (shown.whatIf) {
      const token = quote(this.app.store.text(shown.chosen)) + (shown.chosen === step.id ? " too" : "");
      const limit = shown.whole ? "" : " (from the most likely tokens only, until the rest is here)";
      const greedy = step.uniform === null || last.name === "greedy";
      const how = greedy ? "the most likely token is" : "the same random number would draw";
      const run = `the run ${verb} ${quote(step.text)} with ${percent(step.probability)}`;
      if (step.forced) return `What if: these settings leave ${left}; ${quote(step.text)} ${verb}, not drawn.`;
      return `What if: these settings leave ${left}; ${how} ${token}${limit}; ${run}.`;
    }
    const filters = shown.stages.slice(1).filter((s, i) => s.kept < shown.stages[i].kept);
    if (!filters.length) return `${drew}; no stage removed anything, entropy ${nats(last.entropy)}.`;
    return `${drew}; ${filters.map(stageTitle).join(", then ")} left ${left}, entropy ${nats(last.entropy)}.`;
  }

  /** @param {import('./types.js').ToldStep} step @param {import('./distribution.js').Distribution} shown @returns {import('./tables.js').Table} */
  table(step, shown) {
    const sorted = [...shown.candidates].sort((a, b) => b.raw - a.raw);
    const rows = sorted.map((c) => {
      const fate = c.drawn ? "drawn" : c.removedBy > 0 ? `removed by ${stageTitle(shown.stages[c.removedBy])}` : "";
      return [visible(this.app.store.text(c.id)), fate, c.id, ...c.probabilities.map(exact)];
    });
    rows.push(["everything else", `${count(shown.rest.count)} tokens`, "", ...shown.rest.mass.map(exact)]);
    return {
      caption: `${shown.whatIf ? "What if at step" : "Step"} ${step.index}: probability after each stage`,
      columns: ["Token", "Fate", "Id", ...shown.stages.map(stageTitle)],
      rows,
      mark: sorted.findIndex((c) => c.drawn),
      text: 2,
    };
  }
}

/** Ends that seldom change, so that bars do not jump. @param {number} p */
const barEnd = (p) => [0.1, 0.2, 0.5].find((end) => p <= end) ?? 1;

/** @param {import('./types.js').Stage} stage @param {number} index @param {import('./ledger.js').Columns} columns */
function stageButton(stage, index, columns) {
  const style = columns.stages
    ? { left: `${columns.stages + index * columns.step}px`, width: `${columns.step - 2}px` }
    : {};
  const narrow = columns.stages && columns.step < 56; // then the number stands in the tooltip only
  const lines = [el("span", {}, narrow ? stageName(stage) : stageTitle(stage)), el("span.lv-kept")];
  return el("button.lv-stage", { type: "button", "data-stage": index, style }, ...lines);
}
