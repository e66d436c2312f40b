// @ts-check
/** The one selection that all panels share: token, layer, head, key position. */

export class Selection {
  /** @param {import('./store.js').Store} store @param {() => void} changed */
  constructor(store, changed) {
    this.store = store;
    this.changed = changed;
    this.run = "";
    this.position = -1; // token; -1: nothing yet
    this.layer = 0;
    this.head = 0;
    /** @type {number|null} key position; null: the strongest of the row */
    this.key = null;
    /** @type {number|null} frequency pair; null: the largest contribution */
    this.pair = null;
    /** @type {number|null} stage shown; null: the last */
    this.stage = null;
    this.follow = true;
  }

  /** The query's row: the one that chose the selected token. */
  get row() {
    return this.position < 0 ? -1 : Math.min(Math.max(this.position - 1, 0), this.store.rows - 1);
  }

  /** Number of the step that drew the token; negative for the prompt's tokens. */
  get step() {
    return this.position - this.store.promptLength;
  }

  /** Take over what the run has become. */
  sync() {
    const { store } = this;
    if (store.run !== this.run) {
      Object.assign(this, { run: store.run, position: -1, key: null, stage: null, follow: true });
    }
    if (!store.begin) return;
    const last = store.tokens.length - 1;
    if (this.follow || this.position > last) this.position = last;
    const { heads } = store.begin.model;
    this.layer = nearestAttending(heads, Math.min(this.layer, heads.length - 1));
    this.head = Math.min(this.head, heads[this.layer] - 1);
    if (this.key !== null && this.key > this.row) this.key = null;
  }

  /** @param {Partial<{layer: number, head: number, key: number|null, pair: number|null, stage: number|null}>} change */
  set(change) {
    Object.assign(this, change);
    this.sync();
    this.changed();
  }

  /** Choose a token; from now on the selection stays. @param {number} position */
  pick(position) {
    const last = this.store.tokens.length - 1;
    if (last < 0) return;
    this.position = Math.max(0, Math.min(last, position));
    this.follow = false;
    this.sync();
    this.changed();
  }

  followNewest() {
    this.follow = true;
    this.sync();
    this.changed();
  }

  /** @param {number} by */
  moveLayer(by) {
    const heads = this.store.begin ? this.store.begin.model.heads : [1];
    let layer = this.layer + by;
    while (heads[layer] === 0) layer += by; // layers without attention are stepped over
    if (layer in heads) this.set({ layer });
  }

  /** @param {number} by */
  moveHead(by) {
    const heads = this.store.begin ? this.store.begin.model.heads[this.layer] : 1;
    this.set({ head: Math.max(0, Math.min(heads - 1, this.head + by)) });
  }

  /** The next or previous key, starting from the one shown. @param {number} by @param {number|null} shown */
  moveKey(by, shown) {
    if (shown !== null) this.set({ key: Math.max(0, Math.min(this.row, shown + by)) });
  }

  /** @param {KeyboardEvent} event @param {number|null} shownKey @returns {boolean} whether the key was ours */
  handleKey(event, shownKey) {
    const act = keyAction(event, this, shownKey);
    if (act) act();
    return act !== null;
  }

  describe() {
    if (this.position < 0) return "";
    const step = this.step;
    const where = step >= 0 ? `step ${step}` : `prompt token ${this.position}`;
    return `${where} · layer ${this.layer} · head ${this.head}`;
  }
}

/** The layer itself, or the nearest one that has heads. @param {number[]} heads of each layer @param {number} layer */
export function nearestAttending(heads, layer) {
  const attending = heads.flatMap((count, index) => (count ? [index] : []));
  return attending.reduce(
    (best, each) => (Math.abs(each - layer) < Math.abs(best - layer) ? each : best),
    attending[0],
  );
}

/** @param {KeyboardEvent} event @param {Selection} s @param {number|null} shownKey @returns {(() => void)|null} */
function keyAction(event, s, shownKey) {
  if (event.altKey || event.ctrlKey || event.metaKey) return null;
  /** @type {Record<string, () => void>} */
  const actions = {
    ArrowLeft: () => s.pick(s.position - 1),
    ArrowRight: () => (s.follow ? null : s.pick(s.position + 1)),
    Home: () => s.pick(0),
    End: () => (s.store.finished ? s.pick(s.store.tokens.length - 1) : s.followNewest()),
    ArrowUp: () => (event.shiftKey ? s.moveHead(-1) : s.moveLayer(-1)),
    ArrowDown: () => (event.shiftKey ? s.moveHead(1) : s.moveLayer(1)),
    "[": () => s.moveHead(-1),
    "]": () => s.moveHead(1),
    ",": () => s.moveKey(-1, shownKey),
    ".": () => s.moveKey(1, shownKey),
  };
  return actions[event.key] || null;
}
