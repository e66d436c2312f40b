// @ts-check
/**
 * The run that this page shows. It takes numbered frames in order, whatever order or number of times they come in,
 * asks for those that got lost, and keeps everything per step, so that panels can go back without the server.
 */
import { f32, f64, u8, u32 } from "./codec.js";
import { axisEnd } from "./format.js";
import { PooledMaps, Rows } from "./growing.js";
import { HeadBook } from "./head_book.js";

/** Stands for a token whose step never came. @type {import('./types.js').Token} */
const LOST = { id: -1, text: "…" };
const TILE_CELLS = 48;
const BACKFILL_TRIES = 3;
const BACKFILL_SPAN = 256; // frames asked for at once
const DETAILS_SPAN = 32; // steps whose details are asked for at once
const STEPS_AHEAD = 8; // so near to what is not here yet, it is asked for: arrow keys should never wait

/** @param {number|number[]} bytes @param {number} layers @returns {number[]} */
const perLayer = (bytes, layers) => (Array.isArray(bytes) ? bytes : new Array(layers).fill(bytes));

/** A message's steps, told in columns. @param {any} told @returns {Omit<import('./types.js').Step, 'text'>[]} */
function stepsOf(told) {
  const [ids, probabilities, seconds] = [u32(told.ids), f32(told.probabilities), f32(told.seconds)];
  const [uniforms, chances, mus] = [told.uniforms, told.chances, told.mus].map((each) => (each ? f64(each) : []));
  const known = (/** @type {number} */ value) => (Number.isFinite(value) ? value : null);
  return Array.from(ids, (id, i) => ({
    index: told.first + i,
    id,
    probability: probabilities[i],
    seconds: seconds[i],
    uniform: known(uniforms[i]),
    chance: known(chances[i]),
    mu: known(mus[i]),
    forced: Boolean(told.forced?.includes(told.first + i)),
  }));
}

/** @param {any} raw @param {{name: string, setting: number|null}[]} names of the stages @returns {import('./types.js').Details} */
function decodeDetails(raw, names) {
  const told = f32(raw.stages);
  const stages = names.map((stage, i) => {
    const [kept, mass, entropy] = told.subarray(3 * i, 3 * i + 3);
    return { ...stage, kept, mass, entropy };
  });
  const numbers = { ids: u32(raw.ids), logits: f32(raw.logits), probabilities: f32(raw.probabilities) };
  return { stages, rank: raw.rank, lse: raw.lse, ...numbers };
}

/** Everything known of one run. */
class RunState {
  run = "";
  state = "idle";
  reason = "";
  lost = ""; // said until the run is over: something will stay missing
  note = ""; // why a question was not answered; forgotten when the next one of its kind is
  failed = "";
  /** @type {import('./types.js').Begin|null} */
  begin = null;
  /** @type {import('./types.js').Token[]} */
  tokens = [];
  /** @type {import('./types.js').Step[]} */
  steps = [];
  /** @type {(import('./types.js').Details|undefined)[]} of each step, as far as they were told */
  details = [];
  /** @type {Map<number, string>} */
  texts = new Map();
  rows = 0;
  /** @type {PooledMaps|null} */
  tiles = null;
  /** @type {{k: Rows, v: Rows}|null} */
  norms = null;
  /** @type {import('./types.js').CacheSize[]} every measurement, oldest first */
  cacheLog = [];
  /** @type {import('./types.js').Clock|null} */
  clock = null;
  prefill = { done: 0, of: 0 };
  /** @type {Map<number, import('./types.js').Logits>} */
  logits = new Map();
  next = 0; // sequence number expected next
  /** @type {Map<number, any>} frames that came too early */
  early = new Map();
  tries = 0;
  filling = false;
  /** @type {Set<string>} */
  inFlight = new Set();
}

export class Store extends RunState {
  /**
   * @param {import('./types.js').Server} server
   * @param {() => void} changed called after new data came in
   */
  constructor(server, changed) {
    super();
    this.server = server;
    this.changed = changed;
    /** Runs that others took the place of. @type {Set<string>} */
    this.left = new Set();
    this.received = 0;
    this.ingestMs = 0;
    this.heads = new HeadBook(this);
  }

  /** Forget the run and expect another. @param {string} run */
  reset(run) {
    Object.assign(this, new RunState(), { run, heads: new HeadBook(this) });
  }

  /** Show another run from now on. @param {string} run */
  leave(run) {
    if (this.run) this.left.add(this.run);
    this.left.delete(run);
    this.reset(run);
  }

  /** Another run, from its first frame on. @param {string} run @param {any[]} frames */
  show(run, frames) {
    this.leave(run);
    this.receive(frames);
  }

  /** The settings under which a step was drawn, and their stages. @param {number} step */
  eraOf(step) {
    return this.begin?.eras.filter((era) => era.first <= step).at(-1) ?? null;
  }

  get promptLength() {
    return this.begin ? this.begin.prompt_length : 0;
  }

  get cache() {
    return this.cacheLog.length ? this.cacheLog[this.cacheLog.length - 1] : null;
  }

  get finished() {
    return ["done", "stopped", "error"].includes(this.state);
  }

  /** Positions along every axis: grows in steps while tokens arrive, fits when the run is over. */
  get extent() {
    if (this.finished) return Math.max(1, this.rows);
    return Math.max(1, Math.min(this.begin ? this.begin.planned : Infinity, axisEnd(this.rows)));
  }

  /** The component's value: a frame, a list of frames, or JSON of either. @param {any} value */
  receive(value) {
    if (value === null || value === undefined || value === "") return;
    const started = performance.now();
    // Gradio wraps values in reactive proxies; a plain copy reads several times faster
    const plain = typeof value === "string" ? JSON.parse(value) : JSON.parse(JSON.stringify(value));
    const frames = Array.isArray(plain) ? plain : plain.frames || [plain];
    for (const frame of frames) this.accept(frame);
    this.ingestMs = performance.now() - started;
    this.changed();
  }

  /** @param {any} frame */
  accept(frame) {
    if (!frame || typeof frame.seq !== "number") return;
    if (frame.run !== this.run) {
      if (this.left.has(frame.run)) return; // a run that was left does not come back by itself
      this.leave(frame.run);
    }
    if (frame.seq < this.next) return; // the last message arrives twice
    this.early.set(frame.seq, frame);
    this.drain();
    if (this.early.size) this.backfill();
  }

  drain() {
    let frame = this.early.get(this.next);
    while (frame) {
      this.early.delete(this.next);
      this.next++;
      this.tries = 0;
      this.take(frame);
      frame = this.early.get(this.next);
    }
  }

  /** Fetch the frames between what we have and what came early. */
  async backfill() {
    if (this.filling) return;
    this.filling = true;
    const run = this.run;
    const first = this.next;
    const last = Math.min(Math.min(...this.early.keys()) - 1, first + BACKFILL_SPAN - 1);
    const answer = await this.call("backfill", { run, first, last });
    this.filling = false;
    if (run !== this.run) return;
    for (const frame of answer?.frames || []) if (frame.seq >= this.next) this.early.set(frame.seq, frame);
    this.drain();
    if (this.next === first) this.missed();
    if (this.early.size) this.backfill();
    this.changed();
  }

  /** Nothing came back: try again, then go on without the lost frames and say so. */
  missed() {
    this.tries++;
    if (this.tries < BACKFILL_TRIES) return;
    const upto = Math.min(...this.early.keys());
    this.lost = `${upto - this.next} update${upto - this.next > 1 ? "s" : ""} got lost on the way; some steps have holes.`;
    this.next = upto;
    this.tries = 0;
    this.drain();
  }

  /** @param {any} frame in order */
  take(frame) {
    this.received++;
    if (frame.texts) for (const [id, text] of Object.entries(frame.texts)) this.texts.set(Number(id), text);
    if (frame.kind === "begin") this.takeBegin(frame);
    else if (frame.kind === "prefill") this.takePrefill(frame);
    else if (frame.kind === "steps") this.takeSteps(frame);
    else if (frame.kind === "end") this.takeEnd(frame);
  }

  /** @param {any} frame */
  takeBegin(frame) {
    this.begin = frame;
    this.state = "running";
    this.tokens = [...frame.tokens];
    for (const token of frame.tokens) this.texts.set(token.id, token.text);
    const heads = frame.model.heads;
    this.tiles = new PooledMaps(
      heads.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0),
      TILE_CELLS,
    );
    this.norms = { k: new Rows(heads.length), v: new Rows(heads.length) };
    this.prefill = { done: 0, of: frame.prompt_length };
  }

  /** @param {any} frame */
  takePrefill(frame) {
    this.prefill = { done: frame.done, of: frame.of };
    this.state = "running";
  }

  /** @param {any} frame */
  takeSteps(frame) {
    if (!this.begin || !this.tiles || !this.norms) return;
    this.state = "running";
    for (const step of stepsOf(frame.steps)) this.takeStep(step);
    this.takeDetails(frame.details);
    this.rows = Math.max(this.rows, frame.rows.first + frame.rows.count);
    this.prefill.done = this.prefill.of;
    if (frame.tiles) this.takeTiles(frame.tiles);
    if (frame.focus) this.heads.append(frame.focus);
    if (frame.norms) this.takeNorms(frame.rows.first, frame.rows.count, f32(frame.norms));
    this.takeCaches(frame.caches);
    if (frame.clock) this.clock = frame.clock;
  }

  /** Pictures of all heads; they may wait while single steps come. @param {any} tiles */
  takeTiles(tiles) {
    if (!this.tiles) return;
    this.tiles.merge({ ...tiles, data: u8(tiles.data) });
    this.tiles.rows = tiles.until;
  }

  /** @param {Omit<import('./types.js').Step, 'text'>} told */
  takeStep(told) {
    const step = { ...told, text: this.text(told.id) };
    this.steps[step.index] = step;
    const position = this.promptLength + step.index;
    while (this.tokens.length < position) this.tokens.push(LOST);
    this.tokens[position] = { id: step.id, text: step.text };
  }

  /** @param {any} raw details of the step `index`, if it has any */
  takeDetails(raw) {
    if (raw.stages) this.details[raw.index] = decodeDetails(raw, this.eraOf(raw.index)?.stages ?? []);
  }

  /** @param {number} first @param {number} count @param {Float32Array} values [layers, 2, count] */
  takeNorms(first, count, values) {
    if (!this.norms) return;
    const layers = this.norms.k.width;
    for (const [index, rows] of [this.norms.k, this.norms.v].entries()) {
      const block = new Float32Array(count * layers);
      for (let layer = 0; layer < layers; layer++) {
        const from = (layer * 2 + index) * count;
        for (let n = 0; n < count; n++) block[n * layers + layer] = values[from + n];
      }
      rows.write(first, block);
    }
  }

  /** @param {any} caches columns, an entry a step */
  takeCaches({ k, v, positions, reserved, states }) {
    const layers = this.begin ? this.begin.model.heads.length : 0;
    const at = (/** @type {number|number[]} */ column, /** @type {number} */ i) =>
      Array.isArray(column) ? column[i] : column;
    for (let i = 0; i < positions.length; i++) {
      const size = { positions: positions[i], reserved: at(reserved, i), states: at(states, i) };
      this.cacheLog.push({ ...size, k: perLayer(k[i], layers), v: perLayer(v[i], layers) });
    }
  }

  /** @param {any} frame */
  takeEnd(frame) {
    this.state = frame.state;
    this.reason = frame.reason || "";
    if (frame.tiles) this.takeTiles(frame.tiles);
    if (frame.clock) this.clock = frame.clock;
  }

  /**
   * Ask the server; a failure becomes a note on the page, never an exception.
   * @param {string} name @param {object} request
   */
  async call(name, request) {
    try {
      const answer = await this.server[name](request);
      if (answer && !answer.error) {
        if (this.failed === name) this.note = "";
        return answer;
      }
      this.note = answer?.error || "";
    } catch {
      this.note = "The server did not answer; what you see may be incomplete.";
    }
    this.failed = name;
    return null;
  }

  /**
   * One request per key at a time; `use` runs only when the run is still the same.
   * @param {string} key @param {string} name @param {object} request @param {(answer: any) => void} use
   */
  async fetchOnce(key, name, request, use) {
    const run = this.run;
    const flights = this.inFlight;
    if (flights.has(key)) return;
    flights.add(key);
    const answer = await this.call(name, { run, ...request });
    // a refused request must not be repeated with every frame
    setTimeout(() => flights.delete(key), answer ? 0 : 1000);
    if (run !== this.run) return;
    if (answer) use(answer);
    this.changed();
  }

  /** What led to a step, asked for with its neighbours when it is missing. @param {number} step */
  wantDetails(step) {
    const ahead = this.finished ? [step - STEPS_AHEAD, step + STEPS_AHEAD] : [];
    for (const each of [step, ...ahead]) {
      if (this.steps[each] && !this.details[each]) this.fetchDetails(each - (each % DETAILS_SPAN));
    }
    return this.details[step] || null;
  }

  /** @param {number} first of the steps whose details are asked for */
  fetchDetails(first) {
    const last = Math.min(first + DETAILS_SPAN, this.steps.length);
    this.fetchOnce(`details ${first} ${last}`, "details", { first, last }, (answer) => {
      for (const [id, text] of Object.entries(answer.texts)) this.texts.set(Number(id), text);
      for (const raw of answer.steps) this.takeDetails(raw);
    });
  }

  /** Raw logits of a step, once. @param {number} step */
  wantLogits(step) {
    const have = this.logits.get(step);
    if (have || !this.steps[step]) return have || null;
    this.fetchOnce(`logits ${step}`, "logits", { step }, (answer) => {
      if (this.logits.size > 64) this.logits.delete(this.logits.keys().next().value ?? -1);
      this.logits.set(step, {
        step,
        logits: f32(answer.logits),
        ids: answer.ids ? u32(answer.ids) : null,
        lse: answer.lse ?? NaN,
      });
    });
    return null;
  }

  /** Text of a token id, asked for when it is new. @param {number} id @returns {string} */
  text(id) {
    const known = this.texts.get(id);
    if (known !== undefined) return known;
    this.fetchOnce(`text ${id}`, "texts", { ids: [id] }, (answer) => {
      for (const [key, text] of Object.entries(answer.texts)) this.texts.set(Number(key), text);
      for (const each of [...this.tokens, ...this.steps]) if (each?.id === id) each.text = this.text(id);
    });
    return `#${id}`;
  }
}
