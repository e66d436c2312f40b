// @ts-check
/** The text as chips: real buttons, coloured by the probability each token was drawn with. */
import { el } from "./dom.js";
import { percent, visible } from "./format.js";

const PADDING = 5; // of the strip, as in live.css
const LOOSE = 96; // chips: from so many on, full lines are put into a block

export class TokenStrip {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.run = "";
    this.selected = -1;
    /** @type {HTMLButtonElement[]} */
    this.chips = [];
    /** @type {HTMLElement[]} chips and line breaks that stand in no block yet */
    this.loose = [];
    this.width = 0;
    this.root = el("div.lv-tokens", { role: "group", "aria-label": "Tokens" });
    this.hint = hint();
    this.root.append(this.hint);
    this.root.addEventListener("click", (/** @type {MouseEvent} */ event) => this.onClick(event));
    this.root.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.onHover(event));
    this.root.addEventListener("pointerleave", () => app.tip.hide());
    new ResizeObserver(() => this.resize()).observe(this.root);
  }

  /** Lines break elsewhere: the blocks come apart, and new ones are made as the text goes on. */
  resize() {
    const width = this.root.clientWidth;
    if (width === this.width) return;
    this.width = width;
    const blocks = this.root.querySelectorAll(".lv-lines");
    if (!blocks.length) return;
    const focused = this.holdsFocus() ? /** @type {HTMLElement} */ (document.activeElement) : null;
    for (const block of blocks) block.replaceWith(...block.children);
    this.loose = /** @type {HTMLElement[]} */ ([...this.root.children]);
    focused?.focus({ preventScroll: true });
    const chip = this.chips[this.selected];
    if (chip && this.app.selection.follow) this.reveal(chip);
  }

  /** Whoever stands on a chip would lose it if it moved. */
  holdsFocus() {
    return this.root.contains(document.activeElement);
  }

  /** Full lines into a block of their own: its layout and paint are kept, however long the text grows. */
  fold() {
    if (this.loose.length < LOOSE || this.holdsFocus()) return;
    const tops = this.loose.map((node) => node.offsetTop);
    const full = tops.indexOf(tops[tops.length - 1]);
    if (full < LOOSE / 2) return;
    const block = el("div.lv-lines");
    this.loose[0].before(block);
    block.append(...this.loose.splice(0, full));
  }

  /** @param {Event} event @returns {number} */
  positionOf(event) {
    const chip = /** @type {HTMLElement|null} */ (/** @type {Element} */ (event.target).closest("[data-position]"));
    return chip ? Number(chip.dataset.position) : -1;
  }

  /** @param {MouseEvent} event */
  onClick(event) {
    const position = this.positionOf(event);
    if (position >= 0) this.app.selection.pick(position);
  }

  /** @param {PointerEvent} event */
  onHover(event) {
    const position = this.positionOf(event);
    if (position < 0) this.app.tip.hide();
    else this.app.tip.show(event, this.about(position));
  }

  /** @param {number} position */
  about(position) {
    const { store } = this.app;
    const token = store.tokens[position];
    const step = store.steps[position - store.promptLength];
    const head = `${visible(token.text)}  ·  id ${token.id}  ·  position ${position}`;
    if (!step) return [head, "given by the prompt"];
    const details = store.details[step.index];
    const rank = details ? [`rank ${details.rank + 1} of the raw distribution`] : [];
    if (step.forced) return [head, `given at step ${step.index}, where it had ${percent(step.probability)}`, ...rank];
    return [head, `drawn at step ${step.index} with ${percent(step.probability)}`, ...rank];
  }

  sync() {
    const { store, selection } = this.app;
    if (store.run !== this.run) this.restart(store.run);
    for (let position = this.chips.length; position < store.tokens.length; position++) this.add(position);
    if (selection.position === this.selected) return;
    this.select(selection.position);
    this.fold(); // here, because the layout has just been asked for
  }

  /** @param {string} run */
  restart(run) {
    this.run = run;
    this.chips = [];
    this.loose = [];
    this.selected = -1;
    this.root.replaceChildren();
    if (!this.app.store.tokens.length) this.root.append(this.hint);
  }

  /** @param {number} position */
  add(position) {
    const { store } = this.app;
    if (position === 0) this.root.replaceChildren();
    const token = store.tokens[position] || { id: -1, text: "" };
    const chip = el("button.lv-chip", {
      type: "button",
      tabindex: -1,
      "aria-pressed": "false",
      "data-position": position,
    });
    chip.append(...chipText(token.text));
    chip.setAttribute("aria-label", spoken(token.text));
    this.chips.push(chip);
    this.paint(position);
    const before = position > 0 ? (store.tokens[position - 1]?.text ?? "") : "";
    if (before.includes("\n") && !token.text.startsWith("\n")) this.place(el("span.lv-break"));
    this.place(chip);
  }

  /** @param {HTMLElement} node */
  place(node) {
    this.loose.push(node);
    this.root.append(node);
  }

  /** @param {number} position */
  paint(position) {
    const { store, palette } = this.app;
    const chip = this.chips[position];
    const step = store.steps[position - store.promptLength];
    chip.classList.toggle("lv-given", !step);
    chip.classList.toggle("lv-forced", Boolean(step?.forced));
    if (!step) return;
    chip.style.setProperty("--chip", palette.probability(step.probability));
    chip.style.setProperty("--chip-ink", palette.inkOn(step.probability));
  }

  repaint() {
    for (let position = 0; position < this.chips.length; position++) this.paint(position);
  }

  /** @param {number} position */
  select(position) {
    const before = this.chips[this.selected];
    const after = this.chips[position];
    const hadFocus = before && before === document.activeElement;
    before?.setAttribute("aria-pressed", "false");
    before?.setAttribute("tabindex", "-1");
    this.selected = position;
    if (!after) return;
    after.setAttribute("aria-pressed", "true");
    after.setAttribute("tabindex", "0");
    if (hadFocus) after.focus({ preventScroll: true });
    this.reveal(after);
  }

  /** Scroll the strip, never the page. @param {HTMLElement} chip */
  reveal(chip) {
    const { root } = this;
    const box = chip.getBoundingClientRect();
    const start = box.top - root.getBoundingClientRect().top - root.clientTop + root.scrollTop;
    const top = start - PADDING;
    const bottom = start + box.height + PADDING - root.clientHeight;
    if (top < root.scrollTop) root.scrollTop = top;
    else if (bottom > root.scrollTop) root.scrollTop = bottom;
  }
}

const EXAMPLE = "Once upon a time, there was a little dragon who";

/** What will happen here, and a way to make it happen: the page listens for examples. */
function hint() {
  const tryIt = el("button.lv-button", { type: "button" }, `Try “${EXAMPLE} …”`);
  tryIt.addEventListener("click", () => {
    document.dispatchEvent(new CustomEvent("playground:example", { detail: { prompt: EXAMPLE } }));
  });
  const words = "The text appears here token by token; click a token, or press ← and →, to see its step.";
  return el("div.lv-hint", {}, el("p", {}, words), tryIt);
}

/** Spaces and breaks are marked faintly, the words stay plain. @param {string} text @returns {Node[]} */
function chipText(text) {
  const parts = text.match(/^\s+|\s+$|[^\s]+(?:\s+[^\s]+)*/g) || [""];
  return parts.map((part) => {
    if (part.trim() === "") return el("span.lv-space", {}, visible(part));
    return document.createTextNode(part.replace(/[^ ]+/g, visible));
  });
}

/** @param {string} text */
function spoken(text) {
  const words = text.trim();
  if (words) return words;
  if (text.includes("\n")) return "line break";
  return text ? "space" : "empty token";
}
