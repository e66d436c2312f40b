// @ts-check
/**
 * The live view: tokens on top, four panels below, one selection for all.
 * Frames come in through the component's value; everything is drawn at the next animation frame, once.
 */
import { AttentionPanel } from "./attention.js";
import { BranchDrawer } from "./branches.js";
import { el, setData } from "./dom.js";
import { FigureDialog } from "./figure_dialog.js";
import { CachePanel } from "./kv_cache.js";
import { NextTokenPanel } from "./next_token.js";
import { Palette } from "./palette.js";
import { RopePanel } from "./rope.js";
import { meaning } from "./sampling.js";
import { Selection } from "./selection.js";
import { StatusRow } from "./status.js";
import { Store } from "./store.js";
import { TokenStrip } from "./tokens.js";
import { Tooltip } from "./tooltip.js";

const WORDS = 100; // ms between two rounds of writing while tokens stream: pictures follow each frame, eyes read slower
const REST = 60; // ms without movement before the server is asked about what lies under the pointer

const KEYS =
  "Left and right move the step, up and down the layer, shift with up and down the head, comma and period the key.";

/**
 * What the panels draw: the selection and everything known about it, taken once a screen frame.
 * @typedef {{
 *   store: Store, begin: import('./types.js').Begin|null, position: number, row: number, layer: number, head: number,
 *   step: import('./types.js').ToldStep|null, waiting: boolean, headData: import('./head_book.js').Head|null, pattern: Float32Array|null,
 *   strongest: number, key: number|null, whatIf: Partial<import('./types.js').Settings>|null, vocabulary: number,
 * }} View  `waiting`: the step's details are on their way; `pattern`: the exact row; `strongest`: the key it reads most from; `key`: the chosen one, else the strongest
 */

export class App {
  /**
   * @param {HTMLElement} root @param {import('./types.js').Server} server
   * @param {(event: 'branch'|'act', data: object) => void} trigger tells Python of an event
   */
  constructor(root, server, trigger) {
    this.root = root;
    this.server = server;
    this.trigger = trigger;
    /** What a branch is to be made of; Gradio sends it with the settings. @type {object|null} */
    this.choice = null;
    const invalidate = () => this.invalidate();
    this.store = new Store(server, invalidate);
    this.selection = new Selection(this.store, invalidate);
    this.palette = new Palette(root, () => this.repaint());
    /** @type {Partial<import('./types.js').Settings>|null} */
    this.settings = null;
    this.hooks = {
      paper: () => this.palette.colors.panel,
      redraw: (/** @type {string} */ id) => this.invalidate(id),
      draw: (/** @type {string} */ id) => this.drawPanels((panel) => panel.id === id),
      enlarge: (/** @type {string} */ id) => void this.dialog.open(id),
    };
    /** What was last drawn, from which values: for tests. @type {Record<string, any>} */
    this.drawn = { attention: {}, rope: {}, nextToken: {}, kvCache: {}, frames: 0, drawMs: 0 };
    this.drawnReceived = 0;
    this.pending = 0;
    this.said = { key: "", at: -Infinity }; // when words were last written, and about what
    this.wordsLater = 0; // timer of words that were put off
    /** @type {Set<string>|null} panels to draw; null: all, and the selection is looked up again */
    this.due = new Set();
    this.resting = new Map();
    this.tip = new Tooltip(this.root);
    this.tokens = new TokenStrip(this);
    this.status = new StatusRow(this);
    this.panels = [new AttentionPanel(this), new RopePanel(this), new NextTokenPanel(this), new CachePanel(this)];
    this.dialog = new FigureDialog(this);
    this.branches = new BranchDrawer(this);
    const grid = el("div.lv-panels", {}, ...this.panels.map(({ panel }) => panel.root));
    const below = el("div.lv-below", {}, grid, this.branches.root);
    this.status.root.append(this.branches.toggle);
    this.root.replaceChildren(this.tokens.root, this.status.root, below, this.dialog.root, this.tip.node);
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Live view");
    this.root.setAttribute("aria-description", KEYS);
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    document.addEventListener("playground:settings", (event) => this.whatIf(/** @type {CustomEvent} */ (event).detail));
    document.fonts?.ready.then(() => {
      this.palette.read(); // what was drawn with other fonts is out of date
      this.repaint();
    });
    /** @type {View} */
    this.view = this.look();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("input, select, textarea, [contenteditable], .lv-table")) return;
    const ours = this.branches.handleKey(event) || this.selection.handleKey(event, this.view.key);
    if (ours) event.preventDefault();
  }

  /** Other settings for the shown step; null goes back to what happened. @param {Partial<import('./types.js').Settings>|null} settings */
  whatIf(settings) {
    this.settings = settings;
    this.invalidate();
  }

  /** Go on in another way from the run that is shown. @param {{step?: number, token?: number, text?: string}} choice */
  branch(choice) {
    if (!this.store.run) return;
    this.choice = { run: this.store.run, ...choice };
    this.trigger("branch", {});
  }

  /** Show another run of this page, at the same place where it has one. @param {string} run */
  async show(run) {
    if (run === this.store.run) return;
    const answer = await this.store.call("replay", { run });
    if (!answer) return this.invalidate();
    const { position, follow } = this.selection;
    this.store.show(run, answer.frames);
    this.selection.sync();
    if (!follow && position >= 0) this.selection.pick(position);
    this.invalidate();
  }

  /** Settings that differ from the run's own, else null. */
  get whatIfSettings() {
    const { begin } = this.store;
    if (!begin || !this.settings) return null;
    const own = this.store.eraOf(this.selection.step)?.decoding ?? begin.decoding;
    return meaning({ ...own, ...this.settings }) === meaning(own) ? null : this.settings;
  }

  /** Do something once the pointer (or the selection) rests. @param {string} key @param {() => void} act @param {number} [wait] */
  restOn(key, act, wait = REST) {
    const kind = key.split(" ")[0];
    const before = this.resting.get(kind);
    if (before?.key === key) return;
    if (before) clearTimeout(before.timer);
    const timer = setTimeout(() => {
      this.resting.delete(kind);
      act();
    }, wait);
    this.resting.set(kind, { key, timer });
  }

  /** Draw at the next screen frame, however often it is asked for. @param {string} [only] one panel is enough */
  invalidate(only) {
    if (only === undefined) this.due = null;
    else this.due?.add(only);
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.render();
    });
  }

  repaint() {
    this.tokens.repaint();
    this.invalidate();
  }

  /** Gather what the selection means right now, and ask for what is missing. @returns {View} */
  look() {
    const { store, selection } = this;
    const before = store.run === selection.run;
    selection.sync();
    if (!before) this.settings = null; // a new run starts with what happens
    const { position, row, layer, head } = selection;
    const headData = store.heads.want(layer, head);
    const exact = row >= 0 ? store.heads.wantRow(layer, head, row) : null;
    const pattern = exact?.pattern ?? null;
    const strongest = exact?.key ?? -1;
    const key = selection.key ?? exact?.key ?? null;
    const drawn = store.steps[selection.step];
    const details = drawn ? store.wantDetails(selection.step) : null;
    const step = details ? { ...drawn, ...details } : null;
    const vocabulary = store.begin ? store.begin.model.vocab_size : 0;
    const { begin } = store;
    return {
      store,
      begin,
      position,
      row,
      layer,
      head,
      step,
      waiting: Boolean(drawn && !details),
      headData,
      pattern,
      strongest,
      key,
      whatIf: this.whatIfSettings,
      vocabulary,
    };
  }

  render() {
    const started = performance.now();
    const { due } = this;
    this.due = new Set();
    if (!due) this.view = this.look();
    const talks = due !== null || this.talks(started);
    this.drawPanels((panel) => !due || due.has(panel.id), talks);
    if (due) return;
    if (talks) this.status.sync();
    if (talks) this.branches.sync();
    this.tokens.sync(); // last: it asks for the layout, which all writing before it would make out of date
    this.publish();
    this.drawn.drawMs = performance.now() - started;
  }

  /**
   * Whether words are due. While the newest token is followed they may wait a little: they cost as much as the pictures.
   * @param {number} now ms
   */
  talks(now) {
    const { store, selection } = this;
    const { follow, layer, head, stage } = selection;
    const key = [store.run, store.state, store.rows > 0, follow, layer, head, selection.key, stage].join();
    const streaming = store.state === "running" && follow && key === this.said.key;
    clearTimeout(this.wordsLater);
    this.wordsLater = 0;
    if (streaming && now - this.said.at < WORDS) {
      this.wordsLater = setTimeout(() => this.invalidate(), WORDS);
      return false;
    }
    this.said = { key, at: now };
    return true;
  }

  /**
   * Pictures of all panels, then words of all: text on a canvas asks the browser for the page's layout, and a word
   * written before it would have made that out of date.
   * @param {(panel: import('./panel.js').Panel) => boolean} wanted @param {boolean} [talks] whether words are written
   */
  drawPanels(wanted, talks = true) {
    const chosen = this.panels.filter(({ panel }) => wanted(panel));
    for (const each of chosen) each.paint(this.view);
    if (talks) for (const each of chosen) each.write(this.view);
  }

  /** State for tests and styles, on the element itself. */
  publish() {
    const { root, store, selection } = this;
    setData(root, "run", store.run);
    setData(root, "state", store.state);
    setData(root, "steps", String(store.steps.length));
    setData(root, "step", selection.position < 0 ? "" : String(selection.step));
    if (store.received !== this.drawnReceived) this.drawn.frames++;
    this.drawnReceived = store.received;
  }
}

/** The style sheet, unless the page links it already. */
async function styled() {
  const href = new URL("live.css", import.meta.url).href;
  const links = [...document.querySelectorAll("link[rel=stylesheet]")];
  const there = /** @type {HTMLLinkElement|undefined} */ (
    links.find((link) => /** @type {HTMLLinkElement} */ (link).href.split("?")[0] === href)
  );
  if (there?.sheet) return;
  const link = there || el("link", { rel: "stylesheet", href });
  const loaded = new Promise((resolve) => {
    link.addEventListener("load", resolve);
    link.addEventListener("error", resolve);
  });
  if (!there) document.head.append(link);
  await loaded;
}

let notice = ""; // said beside the prompt

/** @param {string} sentence why the last prompt was refused; empty when it was not */
function notify(sentence) {
  if (sentence === "" && notice === "") return;
  notice = sentence;
  document.dispatchEvent(new CustomEvent("playground:notice", { detail: sentence }));
}

/**
 * Fill the component's place on the page.
 * @param {HTMLElement} element @param {{props: any, trigger?: (event: string, data: object) => void, server: import('./types.js').Server, watch: (name: string, seen: () => void) => void}} gradio
 */
export async function mount(element, { props, trigger, server, watch }) {
  const root = /** @type {HTMLElement & {live?: App}} */ (element.querySelector("#live"));
  if (!root || root.live) return;
  await styled();
  const app = new App(root, server, trigger ?? (() => {}));
  root.live = app;
  const receive = () => {
    const { value } = props;
    const { run } = app.store;
    if (value?.refused !== undefined) notify(value.refused);
    else if (value?.tree) app.branches.take(value);
    else app.store.receive(value);
    if (app.store.run !== run || value?.tree) notify("");
  };
  watch("value", receive);
  receive();
  app.invalidate();
}
