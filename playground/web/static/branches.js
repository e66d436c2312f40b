// @ts-check
/** Branches: other ways on from any step, all runs of this page as a tree, and two of them compared. */
import { Comparison } from "./comparison.js";
import { el, setText } from "./dom.js";
import { bytes, plain, plural, quote, visible } from "./format.js";

/**
 * @typedef {{sum: number, mean: number, own: number, own_mean: number}} Chances  nats, under the model's own distribution
 * @typedef {{
 *   run: string, label: string, parent: string|null, lost: boolean, state: string, step: number, forced: number,
 *   steps: number, prompt: string, given: string, text: string, chances: Chances|null,
 *   settings: Record<string, any>, shared: {positions: number, bytes: number}, bytes: number,
 * }} Node
 */

const EMPTY =
  "Every run of this page will be listed here. Press Generate; then choose another token for any step, and the run goes on from there without computing again what stands before it.";
const HOW = "Or click a candidate in the Next token panel, or press 1 to 9 for the candidate in that row.";
const MEANING =
  "Sum and mean of ln p of all tokens behind the prompt, under the model’s own distribution before any sampler; nearer to 0 is likelier";
const SHORT = /** @type {Record<string, string>} */ ({
  temperature: "temp",
  max_new_tokens: "tokens",
  repetition_penalty: "penalty",
});

export class BranchDrawer {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    /** @type {Node[]} */
    this.nodes = [];
    /** Runs to compare, two at most. @type {string[]} */
    this.pair = [];
    this.key = "";
    this.renaming = "";
    this.deleting = "";
    this.count = el("span.lv-count", { hidden: true });
    this.toggle = el(
      "button.lv-button.lv-branches",
      {
        type: "button",
        "aria-expanded": "false",
        "aria-controls": "lv-drawer",
        title: "Go on in another way; compare",
      },
      "Branches",
      this.count,
    );
    this.toggle.addEventListener("click", () => this.open(this.root.hidden));
    this.place = el("p.lv-place");
    this.own = el("input", { type: "text", "aria-label": "Own words", placeholder: "own words", maxlength: 500 });
    this.go = button("Go on", "These words stand here, and the model goes on");
    this.again = button("Draw again", "The settings at the left draw this token and what follows");
    this.text = el("textarea", { "aria-label": "Edited text", rows: 5 });
    this.edited = button("Go on from this text", "What is unchanged at the beginning is not computed again");
    this.editing = el("details.lv-editing", {}, el("summary", {}, "Edit the whole text"), this.text, this.edited);
    this.refusal = el("p.lv-refusal", { role: "alert", hidden: true });
    this.list = el("ul.lv-tree", { "aria-label": "Runs" });
    this.comparison = new Comparison(app);
    this.root = this.build();
    this.listen();
  }

  build() {
    const close = button("Close", "");
    close.addEventListener("click", () => this.open(false));
    const words = el("form.lv-words", {}, this.own, this.go, this.again);
    words.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.say();
    });
    this.go.type = "submit";
    this.empty = el("p.lv-empty", {}, EMPTY);
    this.ways = el("div.lv-ways", {}, this.place, words, el("p.lv-how", {}, HOW), this.editing, this.refusal);
    return el(
      "aside.lv-drawer",
      { id: "lv-drawer", role: "region", "aria-label": "Branches", tabindex: -1, hidden: true },
      el("header", {}, el("h3", {}, "Branches"), close),
      this.empty,
      this.ways,
      this.list,
      this.comparison.root,
    );
  }

  listen() {
    const { app } = this;
    const next = app.panels.find(({ panel }) => panel.id === "next");
    next?.panel.canvasHost.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const candidate = /** @type {any} */ (next).candidateAt(event);
      if (candidate && !candidate.drawn) this.choose(candidate.id);
    });
    /** @type {any} */ (next)?.waterfall.root.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      const place = /** @type {HTMLElement} */ (event.target).closest("[data-candidate]");
      const id = Number(/** @type {HTMLElement|null} */ (place)?.dataset.candidate);
      if (place && id !== app.view.step?.id) this.choose(id);
    });
    this.again.addEventListener("click", () => this.begin({ step: this.step }));
    this.edited.addEventListener("click", () => this.begin({ text: this.text.value }));
    this.editing.addEventListener("toggle", () => this.fillText());
    this.root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape" && !this.renaming) this.open(false);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target === this.text) this.edited.click();
    });
    document.addEventListener("playground:notice", (event) => {
      const sentence = /** @type {CustomEvent} */ (event).detail;
      this.refusal.hidden = !sentence;
      setText(this.refusal, sentence);
    });
  }

  /** @param {boolean} wanted */
  open(wanted) {
    this.root.hidden = !wanted;
    this.toggle.setAttribute("aria-expanded", String(wanted));
    if (!wanted) this.toggle.focus();
    else this.root.focus({ preventScroll: true }); // not the field: a phone would cover the list with its keyboard
    this.draw();
    this.app.invalidate();
  }

  /** The step whose token may be another; negative in the prompt. */
  get step() {
    return this.app.selection.step;
  }

  /** Number keys choose a candidate, b opens and closes the list. @param {KeyboardEvent} event @returns {boolean} whether the key was ours */
  handleKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return false;
    if (event.key === "b") {
      this.open(this.root.hidden);
      return true;
    }
    if (!/^[1-9]$/.test(event.key)) return false;
    const { run, step, rows } = this.app.drawn.nextToken;
    const row = run === this.app.store.run && step === this.step ? rows?.[Number(event.key) - 1] : null;
    if (row && !row.drawn) this.choose(row.id);
    return true;
  }

  /** A candidate in place of the drawn token. @param {number} token */
  choose(token) {
    this.begin({ step: this.step, token });
  }

  /** Own words in place of the drawn token, with the space that it had before it. */
  say() {
    const words = this.own.value;
    if (!words) return;
    const before = this.app.store.tokens[this.app.selection.position]?.text ?? "";
    const spaced = before.startsWith(" ") && /^[\p{L}\p{N}]/u.test(words) ? ` ${words}` : words;
    this.begin({ step: this.step, text: spaced });
    this.own.value = "";
  }

  /** @param {{step?: number, token?: number, text?: string}} choice */
  begin(choice) {
    if (choice.step !== undefined && choice.step < 0) return;
    this.app.branch(choice);
  }

  /** The runs as the server knows them. @param {{tree: Node[]}} told */
  take(told) {
    this.nodes = told.tree;
    this.pair = this.pair.filter((run) => this.node(run));
    this.app.drawn.branches = { nodes: this.nodes, pair: this.pair };
    this.leaveDeleted();
    this.draw();
    this.app.invalidate();
  }

  /** The run that is shown is gone: show the newest that is left. */
  leaveDeleted() {
    const { store } = this.app;
    if (!this.deleting || this.node(this.deleting)) return;
    const gone = this.deleting;
    this.deleting = "";
    if (store.run !== gone) return;
    const other = this.nodes.at(-1);
    if (other) this.app.show(other.run);
    else store.leave("");
  }

  /** @param {string|null|undefined} run */
  node(run) {
    return this.nodes.find((node) => node.run === run) ?? null;
  }

  /** What the page has become; asks for the tree when a run begins or ends. */
  sync() {
    const { store } = this.app;
    const key = `${store.run} ${store.finished}`;
    if (store.begin && key !== this.key) {
      this.key = key;
      this.fillText();
      this.fetch();
    }
    if (this.root.hidden) return;
    const none = !store.begin;
    this.empty.hidden = !none;
    this.ways.hidden = none;
    if (none) return;
    this.describePlace();
    for (const item of this.list.children) {
      item.querySelector(".lv-pick")?.setAttribute("aria-pressed", String(item.dataset.run === store.run));
    }
    this.comparison.sync(this.pair.map((run) => this.node(run)));
  }

  async fetch() {
    const { run } = this.app.store;
    const told = await this.app.store.call("tree", { run });
    if (told) this.take(told);
  }

  /** The text of the run that is shown, to be edited; not under somebody's hands. */
  fillText() {
    if (!this.editing.open || document.activeElement === this.text) return;
    this.text.value = this.app.store.tokens.map((token) => token.text).join("");
  }

  describePlace() {
    const { store, selection } = this.app;
    const token = store.tokens[selection.position];
    const drawn = this.step >= 0 && token;
    for (const node of [this.own, this.go, this.again]) node.disabled = !drawn;
    setText(
      this.place,
      drawn
        ? `In place of ${quote(token.text)} at step ${this.step}:`
        : "This token was given by the prompt: choose a later one, or edit the text.",
    );
  }

  draw() {
    this.count.hidden = this.nodes.length < 2;
    setText(this.count, String(this.nodes.length));
    if (this.root.hidden) return;
    const focused = this.focusedControl();
    this.list.replaceChildren(...this.branchesOf(null, 0));
    if (focused) this.list.querySelector(focused)?.focus({ preventScroll: true });
  }

  /** A selector of the control that has the focus, to give it back after the list was made anew. */
  focusedControl() {
    const active = document.activeElement;
    if (!active || !this.list.contains(active)) return "";
    const run = /** @type {HTMLElement} */ (active.closest("[data-run]"))?.dataset.run;
    const kind = active.classList.item(active.classList.length - 1);
    return run && kind ? `[data-run="${run}"] .${kind}` : "";
  }

  /** @param {string|null} parent @param {number} depth @returns {HTMLElement[]} */
  branchesOf(parent, depth) {
    return this.nodes
      .filter((node) => node.parent === parent)
      .flatMap((node) => [this.item(node, depth), ...this.branchesOf(node.run, depth + 1)]);
  }

  /** @param {Node} node @param {number} depth */
  item(node, depth) {
    const indent = String(Math.min(depth, 6));
    const item = el("li.lv-node", { "data-run": node.run, style: { "--depth": indent } });
    item.append(this.renaming === node.run ? this.nameForm(node) : this.pick(node), this.actions(node));
    return item;
  }

  /** @param {Node} node */
  pick(node) {
    const shown = node.run === this.app.store.run;
    const where = node.parent ? `from ${this.node(node.parent)?.label} at step ${node.step}` : origin(node);
    const text = el("span.lv-line", {}, el("b", {}, line(node.given)), line(node.text.slice(node.given.length)));
    const pick = el(
      "button.lv-pick",
      { type: "button", "aria-pressed": String(shown), title: `Show ${node.label} in all panels` },
      el("span.lv-head", {}, el("b", {}, node.label), ` ${where}`),
      text,
      el("span.lv-facts", { title: MEANING }, facts(node)),
    );
    pick.addEventListener("click", () => this.app.show(node.run));
    return pick;
  }

  /** @param {Node} node */
  actions(node) {
    const chosen = this.pair.includes(node.run);
    const compare = button("Compare", `Compare ${node.label} with another run`, "lv-compare");
    compare.setAttribute("aria-pressed", String(chosen));
    compare.addEventListener("click", () => {
      this.pair = chosen ? this.pair.filter((run) => run !== node.run) : [...this.pair, node.run].slice(-2);
      this.app.drawn.branches.pair = this.pair;
      this.draw();
      this.app.invalidate();
    });
    const rename = button("Rename", `Rename ${node.label}`, "lv-rename");
    rename.addEventListener("click", () => this.rename(node.run));
    const remove = button("Delete", `Delete ${node.label}; its branches stay`, "lv-delete");
    remove.addEventListener("click", () => {
      this.deleting = node.run;
      this.app.trigger("act", { do: "delete", run: node.run });
    });
    const actions = el("div.lv-node-actions", {}, compare, rename, remove);
    for (const each of actions.children) each.setAttribute("aria-label", each.title);
    return actions;
  }

  /** @param {string} run */
  rename(run) {
    this.renaming = run;
    this.draw();
    /** @type {HTMLInputElement|null} */ (this.list.querySelector(".lv-name input"))?.select();
  }

  /** @param {Node} node */
  nameForm(node) {
    const input = el("input", { type: "text", value: node.label, "aria-label": "Name of the run", maxlength: 40 });
    const form = el("form.lv-name", {}, input, el("button.lv-button", { type: "submit" }, "Save"));
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.app.trigger("act", { do: "rename", run: node.run, label: input.value });
      this.rename("");
    });
    form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape") this.rename("");
    });
    return form;
  }
}

/** @param {string} name @param {string} title @param {string} [kind] @returns {any} */
function button(name, title, kind) {
  const node = el("button.lv-button", { type: "button", title: title || null }, name);
  if (kind) node.classList.add(kind);
  return node;
}

/** @param {Node} node */
function origin(node) {
  return node.lost ? `from a deleted run at step ${node.step}` : visible(node.prompt.slice(0, 80)).replaceAll("·", " ");
}

/** On one line. @param {string} text */
const line = (text) => text.replace(/\s*\n\s*/g, " ↵ ");

/** @param {Node} node */
function facts(node) {
  const settings = Object.entries(node.settings)
    .filter(([name]) => name !== "max_new_tokens")
    .map(([name, value]) => `${SHORT[name] ?? name.replaceAll("_", " ")} ${Array.isArray(value) ? "changed" : value}`);
  const { chances } = node;
  const likely = chances ? [`ln p ${plain(chances.sum, 1)}, ${plain(chances.mean)} a token`] : [];
  const { positions } = node.shared;
  const shared = positions ? [`${plural(positions, "position")} shared (${bytes(node.shared.bytes)} of cache)`] : [];
  return [plural(node.steps, "token"), ...likely, ...settings, ...shared].join(" · ");
}
