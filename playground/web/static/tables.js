// @ts-check
/** The table twin of a panel: the exact numbers behind the picture, for reading, copying and screen readers. */
import { el } from "./dom.js";

/**
 * @typedef {{caption: string, columns: string[], rows: (string|number)[][], mark?: number, text?: number}} Table
 * `mark`: index of the selected row; `text`: how many leading columns hold words rather than numbers.
 */

/** @param {(string|number)[]} cells @param {number} words @param {boolean} marked */
function tableRow(cells, words, marked) {
  const row = el("tr", marked ? { "aria-selected": "true", class: "lv-marked" } : {});
  cells.forEach((cell, i) => row.append(el(i === 0 ? "th" : "td", i === 0 ? { scope: "row" } : {}, String(cell))));
  [...row.children].forEach((node, i) => node.classList.toggle("lv-number", i >= words));
  return row;
}

/** @param {HTMLElement} host @param {Table} table */
export function renderTable(host, table) {
  const words = table.text ?? 1;
  const heads = table.columns.map((label, i) => {
    const cell = el("th", { scope: "col" }, label);
    cell.classList.toggle("lv-number", i >= words);
    return cell;
  });
  const rows = table.rows.map((cells, i) => tableRow(cells, words, i === table.mark));
  host.replaceChildren(
    el(
      "table",
      {},
      el("caption", {}, table.caption),
      el("thead", {}, el("tr", {}, ...heads)),
      el("tbody", {}, ...rows),
    ),
  );
}
