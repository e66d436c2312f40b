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
    /** @param {number} count @param {number} value @param {string[]} [without] why a number cannot be chosen, by number */
    fill(count, value, without = []) {
      while (select.options.length > count) select.remove(select.options.length - 1);
      while (select.options.length < count) {
        const number = String(select.options.length);
        select.add(new Option(number, number));
      }
      for (const [index, option] of [...select.options].entries()) {
        const reason = without[index] || "";
        if (option.title === reason && option.disabled === Boolean(reason)) continue;
        Object.assign(option, { title: reason, disabled: Boolean(reason) });
        option.textContent = reason ? `${index}: ${reason}` : String(index);
      }
      if (select.value !== String(value)) select.value = String(value);
    },
  };
}
