// @ts-check
/** A pasted text scored by the model: totals, tokens coloured by surprisal, a figure, and a file of the numbers. */
import { el, setText } from "./dom.js";
import { count, percent, plural, visible } from "./format.js";
import { Section } from "./section.js";
import { plotly, saveCsv } from "./plotly.js";

const MOST_SURPRISING = 10 * Math.LN2; // nats at the dark end of the scale
const WORDS =
  "The model reads the text once; at each token it is asked how likely it found what really follows (teacher forcing).";
const EMPTY =
  "Each token will stand here, coloured by how surprising it was, with the totals of the text and a figure.";
const START = "Once upon a time, there was a little dragon who lived in a castle. He ate seventeen thunderous violins.";
const EXPLAINED = /** @type {Record<string, string>} */ ({
  surprisal: "sum of −ln p over the scored tokens; the first token is not scored, because nothing precedes it",
  mean: "surprisal divided by tokens: the loss that training minimises",
  perplexity: "e to the power of the mean: among so many equally likely tokens the model seems to choose",
  "bits per byte": "surprisal in bits divided by the bytes of the scored text in UTF-8: comparable between tokenizers",
  entropy: "mean entropy of the distributions: the surprisal that the model itself expects",
});

export class TextScore {
  /** @param {import('./palette.js').Palette} palette @param {import('./section.js').Tell} tell */
  constructor(palette, tell) {
    this.palette = palette;
    this.section = new Section({ name: "Score a text", words: WORDS, action: "Score", tell });
    const { section } = this;
    this.text = el("textarea", { rows: 4, "aria-label": "Text to score" });
    this.text.value = START;
    this.unit = el(
      "select",
      { "aria-label": "Unit of surprisal" },
      new Option("nats", "nats"),
      new Option("bits", "bits"),
    );
    section.fields.append(this.text);
    setText(section.empty, EMPTY);
    this.totals = el("dl.ms-totals");
    this.tokens = el("div.ms-tokens", { role: "group", "aria-label": "Scored tokens" });
    this.about = el("p.ms-about", { role: "status" }, "Choose a token to read its numbers.");
    this.plot = el("div.ms-plot");
    this.csv = el("button", { type: "button", title: "All numbers, one row a token" }, "CSV");
    const bar = el("div.ms-bar", {}, this.legend(), el("label", {}, "in ", this.unit), this.csv);
    section.result.append(this.totals, bar, this.tokens, this.about, this.plot);
    section.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      tell("score", { text: this.text.value, dark: this.palette.dark });
    });
    this.csv.addEventListener("click", () => this.answer && saveCsv(this.answer));
    this.unit.addEventListener("change", () => this.show());
    this.tokens.addEventListener("click", (/** @type {Event} */ event) => this.choose(event));
    this.tokens.addEventListener("focusin", (/** @type {Event} */ event) => this.choose(event));
    /** @type {any} */
    this.answer = null;
  }

  get bits() {
    return this.unit.value === "bits";
  }

  legend() {
    const marks = el("span.ms-scale");
    return el("span.ms-legend", {}, "surprisal 0", marks, "10 bits and more");
  }

  /** @param {any} answer */
  take(answer) {
    this.section.follow(answer, "tokens read");
    if (answer.state !== "done") return;
    this.answer = answer;
    this.section.empty.hidden = true;
    this.section.result.hidden = false;
    this.show();
    void this.draw();
  }

  /** @param {number} nats */
  amount(nats) {
    return `${(this.bits ? nats / Math.LN2 : nats).toFixed(2)} ${this.unit.value}`;
  }

  show() {
    if (!this.answer) return;
    const { totals } = this.answer;
    const rows = [
      ["surprisal", this.amount(totals.nats)],
      ["mean", `${this.amount(totals.mean)} a token`],
      ["perplexity", totals.perplexity.toPrecision(4)],
      ["bits per byte", totals.bits_per_byte.toFixed(4)],
      ["entropy", `${this.amount(totals.entropy)} a token`],
      ["scored", `${plural(totals.tokens, "token")}, ${plural(totals.bytes, "byte")}`],
    ];
    const cells = rows.map(([name, value]) => {
      return el("div", { title: EXPLAINED[name] ?? null }, el("dt", {}, name), el("dd", {}, value));
    });
    this.totals.replaceChildren(...cells);
    this.chips();
  }

  chips() {
    const { tokens, surprisal } = this.answer;
    const chips = tokens.map((/** @type {string} */ text, /** @type {number} */ at) => {
      const chip = el("button.ms-token", { type: "button", "data-at": at, title: this.describe(at) }, visible(text));
      if (at === 0) chip.classList.add("ms-first");
      else this.paint(chip, surprisal[at - 1]);
      const parts = text.includes("\n") ? [chip, el("span.ms-break")] : [chip];
      return parts;
    });
    this.tokens.replaceChildren(...chips.flat());
  }

  /** @param {HTMLElement} chip @param {number} nats */
  paint(chip, nats) {
    const level = Math.min(1, nats / MOST_SURPRISING);
    chip.style.setProperty("--chip", this.palette.level(level));
    chip.style.setProperty("--chip-ink", this.palette.inkOn(level * level)); // its scale runs over the square root
  }

  repaint() {
    if (!this.answer) return;
    this.chips();
  }

  /** @param {number} at */
  describe(at) {
    const { tokens, surprisal, entropy, rank } = this.answer;
    const name = `“${visible(tokens[at])}” at position ${at}`;
    if (at === 0) return `${name}: nothing precedes it, so it is not scored`;
    const nats = surprisal[at - 1];
    const likely = `p = ${percent(Math.exp(-nats))}, rank ${count(rank[at - 1] + 1)}`;
    return `${name}: surprisal ${this.amount(nats)} (${likely}); expected ${this.amount(entropy[at - 1])}`;
  }

  /** @param {Event} event */
  choose(event) {
    const chip = /** @type {HTMLElement|null} */ (/** @type {Element} */ (event.target).closest("[data-at]"));
    if (!chip) return;
    for (const each of this.tokens.querySelectorAll("[aria-pressed]")) each.removeAttribute("aria-pressed");
    chip.setAttribute("aria-pressed", "true");
    setText(this.about, this.describe(Number(chip.dataset.at)));
  }

  async draw() {
    try {
      const Plotly = await plotly();
      const { data, layout } = this.answer.figure;
      const place = { title: undefined, margin: { ...layout.margin, t: 48 }, width: undefined, autosize: true };
      const fitted = { ...layout, ...place }; // the heading stands on the page
      await Plotly.newPlot(this.plot, data, fitted, { responsive: true, displaylogo: false });
    } catch {
      setText(this.plot, "The figure could not be loaded: score the text again.");
    }
  }
}
