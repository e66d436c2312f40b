// @ts-check
/** The frame that both parts of the Measures page have. */
import { el, setText } from "./dom.js";

/** @typedef {{settings: number, samples: number, tokens: number, all: number}} Most */
/** @typedef {(event: 'score'|'compare'|'halt', data: object) => void} Tell */

/** A heading, what it is for, a form, and how it goes. */
export class Section {
  /** @param {{name: string, words: string, action: string, tell: Tell}} options */
  constructor({ name, words, action, tell }) {
    this.fields = el("div.ms-fields");
    this.begin = el("button.ms-go", { type: "submit" }, action);
    this.stop = el("button", { type: "button", disabled: true }, "Stop");
    this.stop.addEventListener("click", () => tell("halt", {}));
    this.progress = el("progress", { hidden: true, "aria-label": `${name}: progress` });
    this.status = el("p.ms-status", { role: "status" });
    this.error = el("p.ms-error", { role: "alert", hidden: true });
    this.form = el(
      "form",
      {},
      this.fields,
      el("div.ms-actions", {}, this.begin, this.stop, this.progress, this.status),
      this.error,
    );
    this.result = el("div.ms-result", { hidden: true });
    this.empty = el("p.ms-empty");
    this.root = el(
      "section.ms-section",
      { role: "region", "aria-label": name },
      el("h2", {}, name),
      el("p.ms-words", {}, words),
      this.form,
      this.empty,
      this.result,
    );
  }

  /** How it goes. @param {{state: string, reason?: string, done?: number, of?: number}} answer @param {string} unit */
  follow({ state, reason, done = 0, of = 1 }, unit) {
    const running = state === "running";
    this.stop.disabled = !running;
    this.progress.hidden = !running;
    this.progress.max = of;
    this.progress.value = done;
    setText(this.status, running ? `${done} of ${of} ${unit}` : state === "stopped" ? (reason ?? "") : "");
    this.error.hidden = state !== "refused";
    setText(this.error, state === "refused" ? (reason ?? "") : "");
  }
}
