// @ts-check
/** A small labelled select for a number. */
import { el } from "./dom.js";

/** @param {string} name @param {(value: number) => void} chosen */
export function picker(name, chosen) {
  const select = el("select", { "aria-label": name });
  const root = el("label.lv-picker", {}, el("span", {}, name), select);
  select.addEventListener("change", () => chosen(Number(select.value)));
  return {
    root,
    /** @param {number} count @param {number} value */
    fill(count, value) {
      while (select.options.length > count) select.remove(select.options.length - 1);
      while (select.options.length < count) select.add(new Option(String(select.options.length)));
      if (select.value !== String(value)) select.value = String(value);
    },
  };
}
