// @ts-check
/** A design's preset and switches as native controls. */
import { el, setText } from "./dom.js";

/** @typedef {{key: string, label: string, kind: string, choices: string[]}} Field */

export class DesignForm {
  /**
   * @param {string} mark "A" or "B"
   * @param {{fields: Field[], presets: {name: string, stated: string}[]}} lists
   * @param {string} preset the first one shown
   * @param {{changed: () => void, open: () => void}} on
   */
  constructor(mark, lists, preset, on) {
    this.mark = mark;
    this.on = on;
    /** @type {Record<string, any>} */
    this.changes = {};
    /** @type {Map<string, any>} */
    this.inputs = new Map();
    const options = lists.presets.map((each) => el("option", { value: each.name }, each.name));
    if (mark === "B") options.unshift(el("option", { value: "" }, "nothing"));
    this.preset = el(
      "select",
      { "aria-label": mark === "A" ? "Preset of design A" : "Compare with design B" },
      ...options,
    );
    this.preset.value = preset;
    this.preset.addEventListener("change", () => this.reset());
    this.back = el("button.arch-button", { type: "button", on: { click: () => this.reset() } }, "Back to the preset");
    this.run = el(
      "button.arch-button",
      { type: "button", on: { click: on.open } },
      "Open a tiny one in the playground",
    );
    this.run.title = "The same switches on a small size, with random weights of seed 0; your prompt, your settings";
    this.error = el("p.arch-error", { role: "alert" });
    this.source = el("p.arch-source");
    const fields = lists.fields.map((field) => this.field(field));
    const switches = el(
      "details.arch-switches",
      {},
      el("summary", {}, "Switches"),
      el("div.arch-fields", {}, ...fields),
    );
    switches.append(this.back);
    const label = el("label.arch-preset", {}, el("b.arch-mark", {}, mark), this.preset);
    this.drawing = el("div.arch-drawing");
    this.root = el("article.arch-design", { "aria-label": `Design ${mark}` });
    this.root.append(label, this.source, switches, this.error, this.run, this.drawing);
  }

  /** @param {Field} field */
  field(field) {
    const id = `arch-${this.mark}-${field.key}`;
    const input = this.control(field, id);
    input.addEventListener("change", () => {
      this.changes[field.key] = this.value(field, input);
      this.on.changed();
    });
    this.inputs.set(field.key, { field, input });
    return el(`div.arch-field`, {}, el("label", { for: id }, field.label), input);
  }

  /** @param {Field} field @param {string} id */
  control(field, id) {
    if (field.kind === "choice") {
      return el(
        "select",
        { id },
        ...field.choices.map((name) => el("option", { value: name }, name.replaceAll("_", " "))),
      );
    }
    if (field.kind === "flag") return el("input", { id, type: "checkbox" });
    return el("input", { id, type: "number", min: 0, step: field.kind === "count" ? 1 : "any", inputmode: "decimal" });
  }

  /** @param {Field} field @param {any} input */
  value(field, input) {
    if (field.kind === "flag") return input.checked;
    return field.kind === "choice" ? input.value : Number(input.value);
  }

  reset() {
    this.changes = {};
    this.on.changed();
  }

  /** What is asked of the server; null where nothing is chosen. */
  asked() {
    return this.preset.value ? { preset: this.preset.value, changes: this.changes } : null;
  }

  /** @param {any} described @param {Set<string>} differing labels of the switches that differ */
  show(described, differing) {
    setText(this.source, described ? described.source : "");
    this.run.hidden = !described;
    this.root.classList.toggle("arch-empty", !described);
    if (!described) return;
    for (const { field, input } of this.inputs.values()) {
      const value = described.values[field.key];
      if (field.kind === "flag") input.checked = Boolean(value);
      else input.value = value === null ? "" : String(value);
      input.parentElement.classList.toggle("arch-differs", differing.has(field.label));
    }
  }
}
