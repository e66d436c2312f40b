// @ts-check
/** Two runs compared: their texts, the next token at the selected position, and the selected head. */
import { el, setText } from "./dom.js";
import { percent, quote, signed, visible } from "./format.js";
import { renderTable } from "./tables.js";

const WAIT = 120; // ms of rest before the server is asked
const TAIL = 60; // characters of a long agreement that are shown
const DEFINED = [
  "total variation: half the sum of |p − q|, from 0 (equal) to 1",
  "KL: sum of p ln(p / q), in nats; infinite where one run's samplers exclude what the other allows",
  "Jensen-Shannon: mean KL of both from their average, from 0 to ln 2",
].join("\n");

/** @param {number} x */
const four = (x) => (x !== 0 && x < 0.0001 ? "<0.0001" : x.toFixed(4));

export class Comparison {
  /** @param {import('./live.js').App} app */
  constructor(app) {
    this.app = app;
    this.key = "";
    this.title = el("h4");
    this.texts = el("p.lv-diff", { tabindex: 0, role: "group", "aria-label": "Difference of the texts" });
    this.stage = el(
      "select",
      { "aria-label": "Distribution compared" },
      new Option("the model’s own", "0"),
      new Option("after the samplers", "1"),
    );
    this.stage.addEventListener("change", () => app.invalidate());
    this.nextTitle = el("h4");
    this.next = el("p.lv-numbers", { title: DEFINED });
    this.movers = el("div.lv-movers");
    this.headTitle = el("h4");
    this.head = el("p.lv-numbers");
    this.there = el("button.lv-button", { type: "button" }, "Go there");
    this.there.addEventListener("click", () => this.goThere());
    this.hint = el("p.lv-how", {}, "Press Compare at two runs to see how far they are apart.");
    this.parts = el("div", { hidden: true });
    this.parts.append(
      this.title,
      this.texts,
      el("div.lv-row-head", {}, this.nextTitle, this.stage),
      this.next,
      this.movers,
      el("div.lv-row-head", {}, this.headTitle, this.there),
      this.head,
    );
    this.root = el("section.lv-comparison", { "aria-label": "Comparison", role: "region" }, this.hint, this.parts);
    /** @type {any} */
    this.answer = null;
  }

  /** @param {(import('./branches.js').Node|null)[]} pair */
  sync(pair) {
    const [first, second] = pair;
    this.hint.hidden = Boolean(second) || this.app.branches.nodes.length < 2;
    this.parts.hidden = !second;
    if (!first || !second) {
      this.key = "";
      return;
    }
    const { position, layer, head } = this.app.selection;
    const asked = { run: first.run, other: second.run, position: Math.max(position, 0), layer, head };
    const request = { ...asked, stage: Number(this.stage.value) };
    const key = JSON.stringify([request, first.steps, second.steps, first.label, second.label]);
    if (key === this.key) return;
    this.key = key;
    this.app.restOn(`compare ${key}`, () => void this.ask(request, first, second), WAIT);
  }

  /** @param {any} request @param {import('./branches.js').Node} first @param {import('./branches.js').Node} second */
  async ask(request, first, second) {
    const { key } = this;
    const answer = await this.app.store.call("compare", request);
    if (!answer || key !== this.key) return;
    this.answer = answer;
    this.app.drawn.comparison = { ...answer, run: first.run, other: second.run };
    setText(this.title, `${first.label} → ${second.label}`);
    this.texts.replaceChildren(...answer.text.flatMap(difference));
    this.showNext(answer, first, second);
    this.showHead(answer.attention);
  }

  /** @param {any} answer @param {import('./branches.js').Node} first @param {import('./branches.js').Node} second */
  showNext({ next, position, reason }, first, second) {
    setText(this.nextTitle, `Next token at position ${position}`);
    this.movers.hidden = !next?.movers.length;
    if (!next) return setText(this.next, reason);
    const kl = (/** @type {number|null} */ x) => (x === null ? "∞" : `${four(x)} nats`);
    const words = [`total variation ${four(next.total_variation)}`, `KL ${kl(next.kl)}, back ${kl(next.kl_back)}`];
    setText(this.next, [...words, `Jensen-Shannon ${four(next.jensen_shannon)} nats`].join(" · "));
    if (!next.movers.length) return;
    renderTable(this.movers, {
      caption: "Tokens whose probability differs most",
      columns: ["Token", first.label, second.label, "Difference"],
      rows: next.movers.map((/** @type {any} */ each) => [
        visible(each.text),
        percent(each.first),
        percent(each.second),
        `${signed((each.second - each.first) * 100)} points`,
      ]),
    });
  }

  /** @param {any} gap */
  showHead(gap) {
    setText(this.headTitle, `Attention of layer ${gap.layer}, head ${gap.head}`);
    this.there.hidden = Boolean(gap.reason) || gap.largest === 0;
    if (gap.reason) return setText(this.head, gap.reason);
    if (gap.largest === 0)
      return setText(this.head, `No difference over the ${gap.positions} positions that both have.`);
    const since = gap.mean_since === null ? "" : `, ${four(gap.mean_since)} from the first different token on`;
    const { tokens } = this.app.store;
    const name = (/** @type {number} */ at) => `${at} ${tokens[at] ? quote(tokens[at].text) : ""}`;
    setText(
      this.head,
      `Largest difference ${four(gap.largest)}, query ${name(gap.query)} to key ${name(gap.key)}; mean ${four(gap.mean)}${since}, over ${gap.positions} positions.`,
    );
  }

  goThere() {
    const { query, key } = this.answer.attention;
    this.app.selection.pick(query + 1);
    this.app.selection.set({ key });
  }
}

/** What agrees stays plain, long stretches of it are shortened. @param {{same: boolean, first: string, second: string}} part */
function difference({ same, first, second }) {
  if (same) return [first.length > TAIL ? `… ${first.slice(-TAIL)}` : first];
  const out = first ? [el("del", {}, first)] : [];
  return second ? [...out, el("ins", {}, second)] : out;
}
