// @ts-check
/** The page "Architecture": one design or two side by side, drawn and counted; what it shows comes from the server. */
import { draw } from "./architecture_diagram.js";
import { DesignForm } from "./architecture_form.js";
import { claimed, copyable, experimented, plot, sums } from "./architecture_sections.js";
import { el, setText } from "./dom.js";

const LENGTHS = [128, 512, 1024, 2048, 4096, 8192, 32768, 131072];
const FIRST = { A: "GPT-2 XL", B: "LLaMA-3.2 1B" };
const FIGURES = ["parameters", "flops", "kv-cache"];

/**
 * @param {HTMLElement} element
 * @param {{design: (request: any) => Promise<any>, background: (request: any) => Promise<any>}} server
 * @param {(design: any) => void} open runs a design in the playground
 */
export function mount(element, server, open) {
  const place = /** @type {HTMLElement} */ (element.querySelector("#architecture"));
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    new Page(place, server, open).start();
  });
  place.textContent = "Designs, their sums and experiments appear here.";
  seen.observe(place);
}

class Page {
  /** @param {HTMLElement} place @param {any} server @param {(design: any) => void} open */
  constructor(place, server, open) {
    this.place = place;
    this.server = server;
    this.open = open;
    this.asked = 0;
    this.figures = FIGURES.map(() => el("div.arch-figure"));
    this.sums = el("div");
    this.code = el("div.arch-codes");
    this.summary = el("p.summary", { role: "status" });
  }

  async start() {
    const lists = await this.server.background({});
    if (!lists) return setText(this.place, "The server did not answer: reload the page.");
    const on = (/** @type {"A"|"B"} */ mark) => ({ changed: () => this.ask(), open: () => this.run(this.forms[mark]) });
    this.forms = {
      A: new DesignForm("A", lists, FIRST.A, on("A")),
      B: new DesignForm("B", lists, FIRST.B, on("B")),
    };
    this.length = this.choice("Length in tokens", LENGTHS, 4096);
    this.dtype = this.choice("Numbers stored as", lists.dtypes, "bfloat16");
    this.device = this.choice("Device", lists.devices, lists.devices[0]);
    const controls = el(
      "div.arch-controls",
      {},
      ...[this.length, this.dtype, this.device].map((each) => each.parentElement),
    );
    const experiments = experimented(lists.experiments);
    const root = el("section.arch-page", { role: "region", "aria-label": "Architecture" }, this.summary, controls);
    root.append(el("div.arch-designs", {}, this.forms.A.root, this.forms.B.root));
    root.append(el("div.arch-figures", {}, ...this.figures), this.sums, this.code);
    root.append(claimed(lists.claims), experiments.root);
    this.place.replaceChildren(root);
    await this.ask();
    await experiments.draw();
  }

  /** @param {string} label @param {(string|number)[]} values @param {string|number} value */
  choice(label, values, value) {
    const options = values.map((each) =>
      el("option", { value: each }, typeof each === "number" ? each.toLocaleString("en") : each),
    );
    const select = el("select", { "aria-label": label, on: { change: () => this.ask() } }, ...options);
    select.value = String(value);
    el("label.arch-choice", {}, label, select);
    return select;
  }

  async ask() {
    const number = ++this.asked;
    const { A, B } = /** @type {any} */ (this.forms);
    const designs = [A.asked(), B.asked()].filter(Boolean);
    const request = { designs, length: Number(this.length.value), dtype: this.dtype.value, device: this.device.value };
    this.place.dataset.state = "asking";
    const answer = await this.server.design(request);
    if (number !== this.asked) return;
    await this.show(answer ?? { error: "The server did not answer: try again." });
    if (number === this.asked) this.place.dataset.state = "shown";
  }

  /** @param {any} answer */
  async show(answer) {
    const { A, B } = /** @type {any} */ (this.forms);
    const wrong = answer.error ? (Object.keys(B.changes).length && !Object.keys(A.changes).length ? B : A) : null;
    for (const form of [A, B]) setText(form.error, form === wrong ? answer.error : "");
    if (answer.error) return;
    const [a, b] = answer.designs;
    const differing = new Set(answer.differs);
    A.show(a, differing);
    B.show(b ?? null, differing);
    A.drawing.replaceChildren(draw(a.diagram, b?.diagram ?? null, `Design A, ${a.name}: the block as configured`));
    B.drawing.replaceChildren(
      ...(b ? [draw(b.diagram, a.diagram, `Design B, ${b.name}: the block as configured`)] : []),
    );
    const count = (/** @type {any} */ design) => `${design.name}: ${design.facts[0][1]} parameters`;
    const words = b
      ? `${count(a)}; ${count(b)}. They differ in ${answer.differs.length} switches and sizes.`
      : `${count(a)}.`;
    setText(this.summary, words);
    this.sums.replaceChildren(sums(answer.designs));
    this.code.replaceChildren(...answer.designs.map(codeOf));
    await Promise.all(this.figures.map((place, index) => plot(place, answer.figures[index], FIGURES[index])));
  }

  /** Show the design in the playground, small. @param {DesignForm} form */
  run(form) {
    this.open(form.asked());
    const masthead = document.querySelector("#masthead .model");
    const [name, details] = [masthead?.querySelector("b"), masthead?.querySelector("span")];
    if (name && details) {
      const before = [name.textContent ?? "", details.textContent ?? ""];
      setText(name, `${form.preset.value}, made small`);
      setText(details, "random weights, seed 0, until you press Generate");
      document.querySelector("#generate")?.addEventListener(
        "click",
        () => {
          setText(name, before[0]);
          setText(details, before[1]);
        },
        { once: true },
      );
    }
    /** @type {HTMLElement|null} */ (document.querySelector('#views button[role="tab"]'))?.click();
  }
}

/** @param {any} design */
function codeOf(design) {
  const root = el(
    "article",
    { "aria-label": `Code of design ${design.mark}` },
    el("h3", {}, `${design.mark}: ${design.name}`),
  );
  root.append(copyable(design.python, `Python of design ${design.mark}`));
  root.append(copyable(design.json, `configuration of design ${design.mark}`));
  return root;
}
