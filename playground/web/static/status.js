// @ts-check
/** The thin row between text and panels: how the run goes, what is selected, what the colours mean. */
import { el, setText } from "./dom.js";
import { seconds, SPACE } from "./format.js";

const WORDS = /** @type {Record<string, string>} */ ({
  idle: "Ready",
  running: "Running",
  done: "Done",
  stopped: "Stopped",
  error: "Failed",
});

export class StatusRow {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.state = el("span.lv-state", {}, el("i.lv-dot"), el("b", {}, WORDS.idle));
    this.rate = el("span.lv-fact", {
      title: "Decoding alone: steps after the first, divided by the time spent in them",
    });
    this.first = el("span.lv-fact", { title: "From the start of the prompt’s forward pass to the first drawn token" });
    this.device = el("span.lv-fact");
    this.note = el("span.lv-note", { role: "status" });
    this.follow = el("button.lv-button.lv-follow", { type: "button", hidden: true }, "Follow newest");
    this.follow.addEventListener("click", () => app.selection.followNewest());
    this.readout = el("span.lv-readout");
    this.root = el(
      "div.lv-status",
      {},
      this.state,
      this.rate,
      this.first,
      this.device,
      this.note,
      el("span.lv-spring"),
      this.follow,
      this.readout,
      legend(),
    );
  }

  sync() {
    const { store, selection } = this.app;
    const prefilling = store.state === "running" && store.prefill.done < store.prefill.of;
    const word = prefilling ? `Reading prompt ${store.prefill.done}/${store.prefill.of}` : WORDS[store.state];
    setText(this.state.lastChild, word);
    this.state.title = store.reason;
    setText(this.rate, rateText(store.clock));
    setText(this.first, store.clock ? `first token ${seconds(store.clock.first_token)}` : "");
    setText(this.device, store.begin ? `${store.begin.model.device} · ${store.begin.model.dtype}` : "");
    setText(this.note, store.lost || store.note || (store.state === "error" ? store.reason : ""));
    setText(this.readout, selection.describe());
    this.follow.hidden = selection.follow || store.finished || store.state === "idle";
  }
}

/** @param {import('./types.js').Clock|null} clock */
function rateText(clock) {
  if (!clock || clock.steps < 2 || !clock.decode) return "";
  const each = clock.decode / (clock.steps - 1);
  return `${(1 / each).toFixed(1)}${SPACE}tokens/s · ${(each * 1000).toFixed(1)}${SPACE}ms/token`;
}

/** One scale for every magnitude on the page. */
function legend() {
  const marks = [0, 1, 10, 50, 100].map((p) => {
    return el("span", { style: { left: `${Math.sqrt(p / 100) * 100}%` } }, `${p}`);
  });
  return el(
    "span.lv-legend",
    { title: "Colour of a probability; the scale runs over its square root, so that small ones stay visible" },
    el("span.lv-legend-name", {}, "probability, %"),
    el("span.lv-legend-scale", {}, el("i.lv-legend-bar"), ...marks),
  );
}
