// @ts-check
/** Samples of one prompt under up to four settings: how varied, how repetitive, how surprising; and the texts. */
import { el, setText } from "./dom.js";
import { Section } from "./section.js";
import { renderTable } from "./tables.js";

const WORDS =
  "The same prompt is continued several times under each setting, every sample with the next seed. Greedy decoding (temperature 0) gives the same text each time.";
const EMPTY = "A table of measures, a column for each setting, will stand here, with the samples below it.";
const START = "Once upon a time, there was a little dragon who";

/** @typedef {{name: string, label: string, low: number, high: number, step: number, off: number}} Knob */
/** @type {Knob[]} `off`: where it does nothing */
const KNOBS = [
  { name: "temperature", label: "Temperature", low: 0, high: 2, step: 0.05, off: 1 },
  { name: "top_k", label: "Top-k", low: 0, high: 200, step: 1, off: 0 },
  { name: "top_p", label: "Top-p", low: 0.01, high: 1, step: 0.01, off: 1 },
  { name: "min_p", label: "Min-p", low: 0, high: 1, step: 0.01, off: 0 },
  { name: "repetition_penalty", label: "Repetition penalty", low: 0.5, high: 2, step: 0.05, off: 1 },
];
/** What the four columns begin with. @type {Record<string, number>[]} */
const PROPOSED = [{ temperature: 0 }, { temperature: 0.7 }, { temperature: 1, top_p: 0.9 }, { temperature: 1.3 }];

/** @type {[string, string, string][]} key, name, meaning */
const MEASURES = [
  [
    "distinct_1",
    "distinct-1",
    "different words / all words, over all samples (Li et al. 2016); 1: no word comes twice",
  ],
  ["distinct_2", "distinct-2", "the same of pairs of neighbouring words"],
  ["self_bleu", "self-BLEU", "mean BLEU-4 of each sample against the others (Zhu et al. 2018); 1: all alike"],
  ["repetition", "repetition", "share of a sample’s runs of four words that stood in it before (Welleck et al. 2020)"],
  ["surprisal", "mean surprisal", "nats per token under the model’s own distribution, before any sampler"],
];

export class SettingsComparison {
  /** @param {import('./section.js').Most} most @param {import('./section.js').Tell} tell */
  constructor(most, tell) {
    this.section = new Section({ name: "Compare settings", words: WORDS, action: "Draw samples", tell });
    const { section } = this;
    this.prompt = el("textarea", { rows: 2, "aria-label": "Prompt to continue" });
    this.prompt.value = START;
    this.samples = number("Samples of each", 1, most.samples, 1, Math.min(5, most.samples));
    this.tokens = number("Tokens of each", 1, most.tokens, 1, Math.min(40, most.tokens));
    this.seed = number("First seed", 0, 2 ** 32 - 1, 1, 0);
    this.columns = PROPOSED.slice(0, most.settings).map(column);
    this.asked = PROPOSED.map(() => "");
    const numbers = el("div.ms-numbers", {}, this.samples.root, this.tokens.root, this.seed.root);
    section.fields.append(this.prompt, numbers, this.table());
    setText(section.empty, EMPTY);
    this.numbers = el("div.ms-table", { tabindex: 0, role: "group", "aria-label": "Measures of the settings" });
    this.texts = el("div.ms-texts");
    section.result.append(this.numbers, this.texts);
    section.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      tell("compare", this.request());
    });
  }

  table() {
    const heads = this.columns.map((each) => el("th", { scope: "col" }, each.use.root));
    const rows = KNOBS.map((knob, row) => {
      const cells = this.columns.map((each) => el("td", {}, each.fields[row]));
      return el("tr", {}, el("th", { scope: "row" }, knob.label), ...cells);
    });
    return el(
      "div.ms-table",
      {},
      el(
        "table.ms-settings",
        {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Setting"), ...heads)),
        el("tbody", {}, ...rows),
      ),
    );
  }

  request() {
    const used = this.columns.filter((each) => each.use.field.checked);
    this.asked = used.map((each) => each.name);
    const settings = used.map((each) => {
      return Object.fromEntries(KNOBS.map((knob, row) => [knob.name, valueOf(each.fields[row])]));
    });
    const [samples, tokens, seed] = [this.samples, this.tokens, this.seed].map((each) => valueOf(each.field));
    return { prompt: this.prompt.value, settings, samples, tokens, seed };
  }

  /** @param {any} answer */
  take(answer) {
    this.section.follow(answer, "samples");
    if (!answer.groups) return;
    const some = answer.groups.some((/** @type {any} */ group) => group.measures);
    this.section.empty.hidden = some;
    this.section.result.hidden = !some;
    if (some) this.show(answer.groups);
  }

  /** @param {any[]} groups */
  show(groups) {
    const names = groups.map((_, at) => this.asked[at] ?? `Setting ${at + 1}`);
    renderTable(this.numbers, {
      caption: "Measures over the samples so far",
      columns: ["Measure", ...names],
      rows: [
        ...MEASURES.map(([key, name]) => [name, ...groups.map((group) => shown(group.measures?.[key]))]),
        ["samples", ...groups.map((group) => group.samples.length)],
      ],
    });
    this.numbers.querySelectorAll("tbody th").forEach((/** @type {Element} */ head, /** @type {number} */ row) => {
      if (MEASURES[row]) head.setAttribute("title", MEASURES[row][2]);
    });
    this.texts.replaceChildren(...groups.map((group, at) => samplesOf(group, names[at])));
  }
}

/** @param {number|null|undefined} value */
const shown = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));

/** @param {any} group @param {string} name */
function samplesOf(group, name) {
  const items = group.samples.map((/** @type {any} */ sample) => {
    const text = el("span.ms-sample", {}, sample.text || "∅");
    return el("li", {}, text, el("span.ms-fact", {}, `${sample.surprisal.toFixed(2)} nats a token`));
  });
  return el("section", { "aria-label": `Samples of ${name}` }, el("h3", {}, name), el("ol", {}, ...items));
}

/** What a field holds; null for what is no number, which the server refuses with a sentence. @param {HTMLInputElement} field */
function valueOf(field) {
  const value = field.value.trim() === "" ? NaN : Number(field.value);
  return Number.isFinite(value) ? value : null;
}

/** @param {Record<string, number>} proposed @param {number} at */
function column(proposed, at) {
  const name = `Setting ${"ABCD"[at]}`;
  const field = el("input", { type: "checkbox", checked: true, "aria-label": `Use ${name}` });
  const fields = KNOBS.map((knob) => {
    const value = proposed[knob.name] ?? knob.off;
    const range = { min: knob.low, max: knob.high, step: knob.step, value };
    return el("input", { type: "number", "aria-label": `${knob.label}, ${name}`, ...range });
  });
  return { name, fields, use: { field, root: el("label", { title: name }, field, "ABCD"[at]) } };
}

/** @param {string} label @param {number} low @param {number} high @param {number} step @param {number} value */
function number(label, low, high, step, value) {
  const field = el("input", { type: "number", min: low, max: high, step, value, "aria-label": label });
  return { field, root: el("label", {}, el("span", {}, label), field) };
}
