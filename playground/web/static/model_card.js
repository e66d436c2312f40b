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
function header(card) {
  const line = document.querySelector("#masthead .model");
  if (!line) return;
  setText(line.querySelector("b"), card.name);
  setText(line.querySelector("span"), card.details);
  line.setAttribute("title", card.details);
}

/** @param {HTMLElement} root @param {Loading|null} loading */
function tell(root, loading) {
  document.body.classList.toggle("is-loading-model", loading !== null);
  root.replaceChildren();
  if (!loading) return;
  const counted = loading.total ? ` ${loading.done} of ${loading.total}` : "";
  root.append(el("p", {}, `Loading ${loading.name}: ${loading.stage}${counted}`));
  const bar = el("progress", { "aria-label": "Loading", max: String(loading.total || 1) });
  if (loading.total) bar.setAttribute("value", String(loading.done));
  root.append(bar);
}

/** @typedef {{props: any, watch: (name: string, seen: () => void) => void}} Gradio */

/**
 * Call `take` with the value now and whenever it changes, once for each place.
 * @param {HTMLElement} root @param {Gradio} gradio @param {(value: any) => void} take
 */
function follow(root, { props, watch }, take) {
  if (root.dataset.mounted) return;
  root.dataset.mounted = "true";
  const receive = () => {
    // Gradio wraps values in reactive proxies
    if (props.value) take(JSON.parse(JSON.stringify(props.value)));
  };
  watch("value", receive);
  receive();
}

/** What stands over the page while a model loads; names the chosen one. @param {HTMLElement} element @param {Gradio} gradio */
export function mountStatus(element, gradio) {
  const root = /** @type {HTMLElement} */ (element.querySelector(".model-status"));
  follow(root, gradio, (value) => {
    tell(root, value.loading ?? null);
    if (value.failed !== undefined) {
      document.dispatchEvent(new CustomEvent("playground:notice", { detail: value.failed }));
    }
    if (!value.groups) return;
    header(value);
    document.body.dataset.model = value.name;
    document.body.classList.toggle("has-chat", value.chat);
  });
}

/** The card itself. @param {HTMLElement} element @param {Gradio} gradio */
export function mountCard(element, gradio) {
  const root = /** @type {HTMLElement} */ (element.querySelector(".model-card"));
  const failure = el("div", {});
  const card = el("article", { role: "region", "aria-label": "Model card" });
  if (!root.dataset.mounted) root.replaceChildren(failure, card);
  follow(root, gradio, (value) => {
    failure.replaceChildren(...(value.failed ? [el("p.model-failed", {}, value.failed)] : []));
    if (value.groups) draw(card, value);
  });
}
