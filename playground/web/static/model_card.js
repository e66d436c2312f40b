// @ts-check
/** The card of the chosen model, how far another one has been loaded, and the name in the header. */
import { el, setText } from "./dom.js";

/**
 * @typedef {{name: string, shows: 'all'|'part'|'nothing', why: string}} Panel
 * @typedef {{name: string, stage: string, done: number, total: number}} Loading
 * @typedef {{
 *   name: string, details: string, chat: boolean, notes: string[], panels: Panel[],
 *   groups: {title: string, rows: string[][]}[], layers: string[][], parts: [string, string, number][],
 * }} Card
 */

const SHOWS = { all: "shows all", part: "shows a part", nothing: "stays empty" };

/** @param {string} title @param {...(Node|string)} content */
const section = (title, ...content) => el("section", {}, el("h3", {}, title), ...content);

/** @param {string[][]} rows */
const list = (rows) => el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

/** @param {Panel[]} panels */
function panelList(panels) {
  const items = panels.map(({ name, shows, why }) =>
    el(
      `li.shows-${shows}`,
      {},
      el("i", { "aria-hidden": "true" }),
      el("b", {}, name),
      el("span.how", {}, SHOWS[shows]),
      el("span", {}, why),
    ),
  );
  return el("ul.model-panels", {}, ...items);
}

/** @param {[string, string, number][]} parts */
function partsList(parts) {
  const rows = parts.map(([name, number, share]) =>
    el(
      "li",
      {},
      el("span", {}, name),
      el("span.bar", {}, el("i", { style: { width: `${Math.max(share * 100, 0.5)}%` } })),
      el("span.number", {}, `${number} · ${(share * 100).toFixed(1)}\u00a0%`),
    ),
  );
  return el("ul.model-parts", {}, ...rows);
}

/** @param {HTMLElement} root @param {Card} card */
function draw(root, card) {
  root.replaceChildren(
    el("h2", {}, card.name, el("small", {}, card.details)),
    ...card.notes.map((note) => el("p.model-note", {}, note)),
    section("What the panels will show", panelList(card.panels)),
    el("div.model-groups", {}, ...card.groups.map(({ title, rows }) => section(title, list(rows)))),
    section("Layers", el("div.model-layers", {}, list(card.layers))),
    section("Parameters by part", partsList(card.parts)),
  );
}

/** @param {Card} card */
function name(card) {
  const line = document.querySelector("#masthead .model");
  if (!line) return;
  setText(line.querySelector("b"), card.name);
  setText(line.querySelector("span"), card.details);
  line.setAttribute("title", card.details);
}

/** @param {HTMLElement} root @param {Loading|null} loading @param {string} failed */
function tell(root, loading, failed) {
  document.body.classList.toggle("is-loading-model", loading !== null);
  root.replaceChildren();
  if (failed) root.append(el("p.model-failed", {}, failed));
  if (!loading) return;
  const counted = loading.total ? ` ${loading.done} of ${loading.total}` : "";
  root.append(el("p", {}, `Loading ${loading.name}: ${loading.stage}${counted}`));
  const bar = el("progress", { "aria-label": "Loading", max: String(loading.total || 1) });
  if (loading.total) bar.setAttribute("value", String(loading.done));
  root.append(bar);
}

/**
 * @param {HTMLElement} element
 * @param {{props: any, watch: (name: string, seen: () => void) => void}} gradio
 */
export function mount(element, { props, watch }) {
  const root = /** @type {HTMLElement|null} */ (element.querySelector(".model-card"));
  if (!root || root.dataset.mounted) return;
  root.dataset.mounted = "true";
  const status = el("div.model-status", { role: "status" });
  const card = el("article", { role: "region", "aria-label": "Model card" });
  root.replaceChildren(status, card);
  let shown = "";
  const receive = () => {
    const value = props.value && JSON.parse(JSON.stringify(props.value));
    if (!value) return;
    tell(status, value.loading ?? null, value.failed ?? "");
    if (value.failed) document.dispatchEvent(new CustomEvent("playground:notice", { detail: value.failed }));
    if (!value.groups || JSON.stringify(value) === shown) return;
    shown = JSON.stringify(value);
    draw(card, value);
    name(value);
    root.dataset.model = value.name;
    document.body.classList.toggle("has-chat", value.chat);
  };
  watch("value", receive);
  receive();
}
