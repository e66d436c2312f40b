// @ts-check
/** The order of the stages as a list: rows are dragged by their handle or moved by buttons; stages that are off are dim. */
import { el, setText } from "./dom.js";
import { activeStages } from "./sampling.js";

/**
 * @typedef {{value: string[], labels: Record<string, string>, orders: Record<string, string[]>}} Props
 * @typedef {{props: Props, watch: (name: string, seen: () => void) => void, trigger: (name: string) => void}} Gradio
 */

export class OrderList {
  /** @param {HTMLElement} host @param {Gradio} gradio */
  constructor(host, { props, trigger }) {
    this.props = props;
    this.trigger = trigger;
    this.list = el("ol.order-list", { "aria-label": "Order of the stages" });
    this.said = el("p.order-said", { role: "status" });
    this.presets = el("div.order-presets", { role: "group", "aria-label": "Named orders" });
    for (const name of Object.keys(props.orders)) {
      const button = el("button.quiet", { type: "button", "data-order": name, "aria-pressed": "false" }, name);
      button.addEventListener("click", () => this.choose(props.orders[name], `The order of ${name}.`));
      this.presets.append(button);
    }
    /** @type {Map<string, HTMLElement>} */
    this.rows = new Map(props.value.map((name) => [name, this.row(name)]));
    /** @type {{row: HTMLElement, moved: boolean}|null} */
    this.drag = null;
    this.list.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => this.grab(event));
    this.list.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.pull(event));
    for (const end of ["pointerup", "pointercancel"]) this.list.addEventListener(end, () => this.drop());
    this.list.addEventListener("click", (/** @type {MouseEvent} */ event) => this.clicked(event));
    this.list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.pressed(event));
    document.addEventListener("playground:settings", (event) => this.dim(/** @type {CustomEvent} */ (event).detail));
    host.replaceChildren(this.presets, this.list, this.said);
    this.sync();
  }

  /** @param {string} name */
  row(name) {
    const label = this.props.labels[name];
    const button = (/** @type {string} */ arrow, /** @type {string} */ way, /** @type {number} */ by) =>
      el(
        "button",
        { type: "button", "data-by": by, "aria-label": `Move ${label} ${way}`, title: `Move ${way}` },
        arrow,
      );
    const handle = el("span.order-handle", { "aria-hidden": "true", title: "Drag" }, "⠿");
    const words = el("span.order-name", {}, label);
    return el("li", { "data-stage": name }, handle, words, button("↑", "earlier", -1), button("↓", "later", 1));
  }

  get names() {
    return this.props.value;
  }

  /** Show the value as it is now. */
  sync() {
    const rows = this.names.map((name) => this.rows.get(name)).filter((row) => row !== undefined);
    const focused = document.activeElement;
    if (rows.some((row, i) => this.list.children[i] !== row)) this.list.replaceChildren(...rows);
    if (focused instanceof HTMLElement && this.list.contains(focused)) focused.focus(); // it was taken out for a moment
    rows.forEach((row, i) => {
      const [earlier, later] = row.querySelectorAll("button");
      earlier.toggleAttribute("aria-disabled", i === 0);
      later.toggleAttribute("aria-disabled", i === rows.length - 1);
    });
    for (const button of this.presets.children) {
      const order = this.props.orders[/** @type {HTMLElement} */ (button).dataset.order ?? ""];
      button.setAttribute("aria-pressed", String(order.join() === this.names.join()));
    }
  }

  /** @param {string[]} names @param {string} words for who cannot see it */
  choose(names, words) {
    if (names.join() !== this.names.join()) {
      this.props.value = [...names];
      this.trigger("change");
    }
    this.sync();
    setText(this.said, words);
  }

  /** @param {string} name @param {number} to place, from 0 */
  move(name, to) {
    const from = this.names.indexOf(name);
    if (from < 0 || to < 0 || to >= this.names.length) return;
    const names = this.names.filter((each) => each !== name);
    names.splice(to, 0, name);
    this.choose(names, `${this.props.labels[name]} is stage ${to + 1} of ${names.length}.`);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const button = /** @type {HTMLElement} */ (event.target).closest("button");
    const name = button?.closest("li")?.dataset.stage;
    if (!button || !name) return;
    const focused = document.activeElement;
    this.move(name, this.names.indexOf(name) + Number(button.dataset.by));
    if (focused instanceof HTMLElement) focused.focus();
  }

  /** Arrow keys on a row's button move the row, too. @param {KeyboardEvent} event */
  pressed(event) {
    const way = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const name = /** @type {HTMLElement} */ (event.target).closest("li")?.dataset.stage;
    if (!way || !name) return;
    event.preventDefault();
    const focused = /** @type {HTMLElement} */ (document.activeElement);
    this.move(name, this.names.indexOf(name) + way);
    focused.focus();
    focused.scrollIntoView({ block: "nearest" });
  }

  /** @param {PointerEvent} event */
  grab(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const row = target.closest("li");
    if (!row || target.closest("button") || event.button !== 0) return;
    if (event.pointerType !== "mouse" && !target.closest(".order-handle")) return; // else a finger could not scroll
    event.preventDefault();
    this.list.setPointerCapture(event.pointerId);
    this.drag = { row, moved: false };
    row.classList.add("order-dragged");
  }

  /** @param {PointerEvent} event */
  pull(event) {
    if (!this.drag) return;
    const { row } = this.drag;
    const rows = /** @type {HTMLElement[]} */ ([...this.list.children]);
    const place = rows.findIndex((each) => {
      const box = each.getBoundingClientRect();
      return event.clientY < box.top + box.height / 2;
    });
    const before = place < 0 ? null : rows[place];
    if (before === row || before === row.nextElementSibling) return;
    this.list.insertBefore(row, before);
    this.drag.moved = true;
  }

  drop() {
    if (!this.drag) return;
    const { row, moved } = this.drag;
    this.drag = null;
    row.classList.remove("order-dragged");
    if (!moved) return;
    const names = /** @type {HTMLElement[]} */ ([...this.list.children]).map((each) => each.dataset.stage ?? "");
    const name = row.dataset.stage ?? "";
    this.choose(names, `${this.props.labels[name]} is stage ${names.indexOf(name) + 1} of ${names.length}.`);
  }

  /** @param {import('./types.js').Settings} settings */
  dim(settings) {
    const active = new Set(activeStages({ ...settings, order: this.names }));
    for (const [name, row] of this.rows) row.classList.toggle("order-off", !active.has(name));
  }
}

/** @param {HTMLElement} host @param {Gradio} gradio */
export function mount(host, gradio) {
  const list = new OrderList(host, gradio);
  gradio.watch("value", () => list.sync());
  document.dispatchEvent(new CustomEvent("playground:ask-settings"));
}
