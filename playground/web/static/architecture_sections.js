// @ts-check
/** The lower part of the page: sums side by side, code to copy, claims that were checked, experiments. */
import { el } from "./dom.js";
import { plotly } from "./plotly.js";

/** @param {HTMLElement} place @param {any} figure @param {string} name of the file that is saved */
export async function plot(place, figure, name) {
  const Plotly = await plotly();
  const config = { responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg", filename: name } };
  await Plotly.react(place, figure.data, { ...figure.layout, width: undefined, autosize: true }, config);
}

/** @param {string} text @param {string} label */
export function copyable(text, label) {
  const button = el("button.arch-button.arch-copy", { type: "button", "aria-label": `Copy ${label}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return el("div.arch-code", {}, el("pre", { tabindex: 0, "aria-label": label }, text), button);
}

/** @param {string[]} heads @param {(string|Node)[][]} rows @param {string} caption @param {boolean[]} [marked] */
export function table(heads, rows, caption, marked = []) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map((cells, index) => {
    const [first, ...rest] = cells;
    const row = el("tr", {}, el("th", { scope: "row" }, first), ...rest.map((cell) => el("td", {}, cell)));
    if (marked[index]) row.className = "arch-differs";
    return row;
  });
  const made = el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body));
  return el("div.arch-table", { tabindex: 0, role: "region", "aria-label": caption }, made);
}

/** The sums of one or two designs. @param {any[]} designs */
export function sums(designs) {
  const [a, b] = designs;
  if (!b) return table(["", "A", "how"], a.facts, "Sums");
  const names = [...new Set([...a.facts, ...b.facts].map((row) => row[0]))];
  const rows = names.map((name) => {
    const [ours, theirs] = [a, b].map((each) => each.facts.find((/** @type {string[]} */ row) => row[0] === name));
    const same = ours?.[1] === theirs?.[1];
    return [name, ours?.[1] ?? "–", same ? "" : "≠", theirs?.[1] ?? "–", (ours ?? theirs)[2]];
  });
  return table(
    ["", "A", "", "B", "how (for A)"],
    rows,
    "Sums, side by side",
    rows.map((row) => row[2] !== ""),
  );
}

/** @param {any} claim */
function claimRow(claim) {
  return [claim.topic, claim.said, claim.right ? "✓ agrees" : "✗ wrong", claim.found, claim.why];
}

/** @param {any[]} claims */
export function claimed(claims) {
  const rows = claims.map(claimRow);
  return el(
    "section.arch-section",
    { "aria-label": "Common claims, checked" },
    el("h3", {}, "Common claims, checked"),
    table(
      ["claim", "said", "", "found", "why"],
      rows,
      "What texts say beside what it comes to",
      claims.map((each) => !each.right),
    ),
  );
}

/** @param {any} each */
function experiment(each) {
  const place = el("div.arch-figure");
  const root = el("article.arch-experiment", { "aria-label": each.title }, el("h4", {}, each.title));
  root.append(el("p.arch-question", {}, each.question), place, el("p", {}, each.sentence));
  if (each.table) root.append(table(each.table.heads, each.table.rows, each.table.caption));
  root.append(
    copyable(each.command, `the command of ${each.title}`),
    el("p.arch-source", {}, `Recorded: ${each.made}`),
  );
  return { root, draw: () => plot(place, each.figure, each.name) };
}

/** @param {any[]} experiments @returns {{root: any, draw: () => Promise<void>}} */
export function experimented(experiments) {
  const made = experiments.map(experiment);
  const root = el(
    "section.arch-section",
    { "aria-label": "Experiments" },
    el("h3", {}, "Experiments"),
    el("div.arch-experiments", {}, ...made.map((each) => each.root)),
  );
  return {
    root,
    draw: async () => {
      for (const each of made) await each.draw();
    },
  };
}
