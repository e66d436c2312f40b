// @ts-check
/** The frame that every panel has: title, controls, table twin, enlarge, summary, and a sentence when there is nothing. */
import { el, setText } from "./dom.js";
import { sketch } from "./sketches.js";
import { Surface } from "./surface.js";
import { renderTable } from "./tables.js";

export class Panel {
  /**
   * @param {{name: string, id: string, empty: string, paper: () => string, redraw: (id: string) => void, draw: (id: string) => void, enlarge: (id: string) => void}} options
   */
  constructor({ name, id, empty, paper, redraw, draw, enlarge }) {
    this.id = id;
    this.redraw = () => redraw(id);
    this.draw = () => draw(id);
    this.tabular = false;
    this.controls = el("div.lv-controls");
    this.tableButton = el(
      "button.lv-button",
      { type: "button", "aria-pressed": "false", title: "The same as exact numbers" },
      "Table",
    );
    this.tableButton.addEventListener("click", () => this.toggleTable());
    this.enlargeButton = el("button.lv-button", { type: "button", title: "Zoom, read values, download" }, "Enlarge");
    this.enlargeButton.addEventListener("click", () => enlarge(id));
    const actions = el("div.lv-actions", {}, this.tableButton, this.enlargeButton);
    this.summary = el("p.summary", { id: `lv-${id}-summary` });
    this.canvasHost = el("div.lv-canvas");
    this.tableHost = el("div.lv-table", {
      hidden: true,
      tabindex: 0,
      role: "group",
      "aria-label": `${name}, exact numbers`,
    });
    this.words = el("p", {}, empty);
    this.message = el("div.lv-message", {}, sketch(id), this.words);
    this.empty = empty;
    this.extra = el("div.lv-extra");
    this.body = el("div.lv-body", {}, this.canvasHost, this.tableHost, this.message);
    this.root = el(
      `section.lv-panel.lv-${id}`,
      { role: "region", "aria-label": name, "aria-describedby": `lv-${id}-summary` },
      el("header", {}, el("h3", {}, name), this.controls, actions),
      this.summary,
      this.body,
      this.extra,
    );
    this.surface = new Surface(this.canvasHost, paper, this.draw);
    this.blank();
  }

  /** The table stands there when the click is over: whoever asked for it may go on reading at once. */
  toggleTable() {
    this.tabular = !this.tabular;
    this.tableButton.setAttribute("aria-pressed", String(this.tabular));
    this.draw();
  }

  /** Before the first run: what will stand here. */
  blank() {
    this.talk(this.empty, true);
    this.describe("");
  }

  /** A sentence instead of the picture. @param {string} sentence @param {string} [hint] what to do about it */
  say(sentence, hint = "") {
    this.talk(hint, false);
    this.describe(sentence);
  }

  /** The picture, or its table. */
  reveal() {
    this.root.classList.remove("lv-talking", "lv-blank");
    this.message.hidden = true;
    this.canvasHost.hidden = this.tabular;
    this.tableHost.hidden = !this.tabular;
    for (const button of [this.tableButton, this.enlargeButton]) button.disabled = false;
  }

  /** Whether there is a picture to paint, rather than a table or nothing to see. */
  get pictured() {
    return !this.tabular && this.surface.visible;
  }

  /** @param {string} words @param {boolean} blank */
  talk(words, blank) {
    this.root.classList.add("lv-talking");
    this.root.classList.toggle("lv-blank", blank);
    this.message.hidden = false;
    this.canvasHost.hidden = this.tableHost.hidden = true;
    setText(this.words, words);
    for (const button of [this.tableButton, this.enlargeButton]) button.disabled = true;
  }

  /** @param {string} text */
  describe(text) {
    setText(this.summary, text);
  }

  /** @param {import('./tables.js').Table|null} table */
  fillTable(table) {
    if (this.tabular && table) renderTable(this.tableHost, table);
  }
}
