// @ts-check
/** A panel enlarged: a Plotly figure of the same data, with zoom, exact values on hover, and downloads. */
import { el, setText } from "./dom.js";
import { plotly, saveCsv } from "./plotly.js";

const PANELS = /** @type {Record<string, {ask: string, title: string}>} */ ({
  attention: { ask: "attention", title: "Attention" },
  rope: { ask: "rope", title: "RoPE" },
  next: { ask: "next_token", title: "Next token" },
  cache: { ask: "kv_cache", title: "KV cache" },
});

export class FigureDialog {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.title = el("h3", { id: "lv-figure-title" });
    this.plot = el("div.lv-figure");
    this.status = el("p.lv-message", { role: "status" });
    /** @type {{title: string, figure: any, csv: string, filename: string}|null} */
    this.answer = null;
    const buttons = [this.button("PNG", () => this.image("png")), this.button("SVG", () => this.image("svg"))];
    buttons.push(this.button("CSV", () => this.csv()));
    const close = el("button.lv-button", { type: "button" }, "Close");
    close.addEventListener("click", () => this.root.close());
    this.downloads = buttons;
    const header = el("header", {}, this.title, el("div.lv-actions", {}, ...buttons, close));
    this.root = el("dialog.lv-dialog", { "aria-labelledby": "lv-figure-title" }, header, this.status, this.plot);
    this.root.addEventListener("close", () => this.clear());
    this.root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.stopPropagation());
  }

  /** @param {string} name @param {() => void} act */
  button(name, act) {
    const node = el("button.lv-button", { type: "button", title: `Download as ${name}` }, name);
    node.addEventListener("click", act);
    return node;
  }

  /** @param {string} id of a panel */
  async open(id) {
    const { store, selection, view, palette } = this.app;
    this.say(id, "Computing the figure from the run …");
    this.root.showModal();
    const where = { step: selection.step, layer: selection.layer, head: selection.head, key: view.key };
    const request = { run: store.run, panel: PANELS[id].ask, ...where, dark: palette.dark };
    try {
      const [Plotly, answer] = await Promise.all([plotly(), this.app.server.figure(request)]);
      if (!answer || answer.error) return this.say(id, answer?.error || "The server could not make this figure.");
      await this.show(Plotly, answer);
    } catch {
      this.say(id, "The figure could not be loaded: close this and try again.");
    }
  }

  /** @param {string} id @param {string} sentence */
  say(id, sentence) {
    setText(this.title, PANELS[id].title);
    this.status.hidden = false;
    setText(this.status, sentence);
    for (const button of this.downloads) button.disabled = true;
  }

  /** @param {any} Plotly @param {any} answer */
  async show(Plotly, answer) {
    if (!this.root.open) return;
    this.answer = answer;
    this.status.hidden = true;
    for (const button of this.downloads) button.disabled = false;
    const { data, layout } = answer.figure;
    const fitted = { ...layout, width: undefined, height: undefined, autosize: true };
    await Plotly.newPlot(this.plot, data, fitted, { responsive: true, displaylogo: false });
  }

  /** @param {'png'|'svg'} format */
  async image(format) {
    if (!this.answer) return;
    const Plotly = await plotly();
    const size = { width: this.plot.clientWidth, height: this.plot.clientHeight };
    await Plotly.downloadImage(this.plot, { format, ...size, scale: 2, filename: this.answer.filename });
  }

  csv() {
    if (this.answer) saveCsv(this.answer);
  }

  clear() {
    this.answer = null;
    /** @type {any} */ (window).Plotly?.purge(this.plot);
    this.plot.replaceChildren();
  }
}
