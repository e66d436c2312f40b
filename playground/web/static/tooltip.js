// @ts-check
/** One tooltip for the whole component; it follows the pointer and stays inside the window. */
import { el } from "./dom.js";

export class Tooltip {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.node = el("div.lv-tip", { hidden: true, "aria-hidden": "true" });
    root.append(this.node);
  }

  /** @param {{clientX: number, clientY: number}} at @param {string[]} lines the first is the headline */
  show(at, lines) {
    this.node.replaceChildren(...lines.map((text) => el("div", {}, text)));
    this.node.hidden = false;
    const { offsetWidth: w, offsetHeight: h } = this.node;
    const left = at.clientX + 14 + w > innerWidth - 8 ? at.clientX - w - 12 : at.clientX + 14;
    const top = at.clientY + 16 + h > innerHeight - 8 ? at.clientY - h - 12 : at.clientY + 16;
    this.node.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
  }

  hide() {
    this.node.hidden = true;
  }
}
