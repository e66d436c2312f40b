// @ts-check
import { activeStages } from "./sampling.js";

// What the settings column does without asking the server: tells the panels about moved sliders, fills in examples,
// draws a seed, switches between light and dark.

/**
 * What layout.py knows of the widgets: names in their order, those that are typed as text, those of each group, presets.
 * @typedef {{
 *   names: string[], typed: string[], groups: Record<string, string[]>, presets: Record<string, Record<string, unknown>>,
 * }} Widgets
 */

const LEAST_SLIDERS = 6; // those that do not fold away
const PHONE = "(max-width: 767px)";
/** Typed words are stages under other names. @type {Record<string, string>} */
const BECOMES = { banned_words: "bad_words_ids", forced_words: "force_words_ids", word_bias: "sequence_bias" };

/** Of all widgets, by name. @type {Record<string, unknown>} */
let values = {};
/** Token ids of typed words, as the server read them. @type {Record<string, unknown>} */
let words = { dry_sequence_breakers: ["\n", ":", '"', "*"] };
/** @type {Widgets | null} */
let widgets = null;

/** The page has left the values of all settings on the window. */
function settingsChanged() {
  /** @type {[unknown[], Widgets] | undefined} */
  const told = /** @type {any} */ (window).playgroundSettings;
  if (!told) return;
  const [list, known] = told;
  widgets = known;
  values = Object.fromEntries(known.names.map((name, i) => [name, list[i]]));
  tellSettings();
}

/** Tell the panels what other settings would do, and mark what is on. */
function tellSettings() {
  if (!widgets) return;
  const { typed, groups, presets } = widgets;
  const numbers = Object.entries(values).filter(([name]) => !typed.includes(name));
  const detail = /** @type {any} */ ({ ...Object.fromEntries(numbers), ...words });
  document.dispatchEvent(new CustomEvent("playground:settings", { detail }));
  const active = activeStages(detail);
  for (const [group, names] of Object.entries(groups)) {
    const on = names.filter((name) => active.includes(BECOMES[name] ?? name)).length;
    const label = button(`#group-${group} > .label-wrap`);
    if (label) label.dataset.on = on ? `${on} on` : "";
  }
  for (const [name, wanted] of Object.entries(presets)) {
    const same = Object.entries(wanted).every(([key, value]) => JSON.stringify(value) === JSON.stringify(values[key]));
    button(`#preset-${name}`)?.setAttribute("aria-pressed", String(same));
  }
}

/**
 * Type into a field the way a person does, so that Gradio notices.
 * @param {HTMLInputElement | HTMLTextAreaElement | null} field
 * @param {string} text
 */
function type(field, text) {
  if (!field) return;
  const prototype = field instanceof HTMLTextAreaElement ? HTMLTextAreaElement.prototype : HTMLInputElement.prototype;
  Object.getOwnPropertyDescriptor(prototype, "value")?.set?.call(field, text);
  for (const kind of ["input", "change", "blur"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
}

/** @param {string} selector */
const button = (selector) => /** @type {HTMLElement | null} */ (document.querySelector(selector));

const nextFrame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));

/** @param {string} prompt */
async function useExample(prompt) {
  type(document.querySelector("#prompt textarea"), prompt);
  await nextFrame(); // Gradio takes over the text with its next update
  button("#generate")?.click();
}

function drawSeed() {
  type(document.querySelector("#seed input"), String(crypto.getRandomValues(new Uint32Array(1))[0]));
}

/** @returns {string | null} */
function rememberedTheme() {
  try {
    return localStorage.getItem("playground-theme");
  } catch {
    return null; // storage may be forbidden in a frame
  }
}

/** @param {boolean} dark */
function setTheme(dark) {
  document.body.classList.toggle("dark", dark);
  document.documentElement.classList.toggle("dark-page", dark);
  const control = button("#theme");
  if (control) control.textContent = dark ? "Light" : "Dark";
}

function switchTheme() {
  const dark = !document.body.classList.contains("dark");
  setTheme(dark);
  try {
    localStorage.setItem("playground-theme", dark ? "dark" : "light");
  } catch {
    // then it lasts until the page is left
  }
}

function applyTheme() {
  const asked = new URLSearchParams(location.search).get("__theme") ?? rememberedTheme();
  setTheme(asked ? asked === "dark" : document.body.classList.contains("dark"));
}

function foldOnPhones() {
  if (!matchMedia(PHONE).matches) return;
  const label = button("#sampling .label-wrap");
  if (label?.classList.contains("open")) label.click();
}

/** @param {MouseEvent} event */
function clicked(event) {
  const target = event.target instanceof Element ? event.target.closest("button") : null;
  if (!target) return;
  if (target.id === "theme") switchTheme();
  else if (target.id === "dice") drawSeed();
  else if (target.classList.contains("example")) void useExample(target.dataset.prompt ?? "");
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  if (!(event.target instanceof Element) || !event.target.closest("#settings")) return;
  event.preventDefault();
  button("#generate")?.click();
}

/** Screen readers should hear "Temperature", not "range slider for Temperature"; folded ones are built when opened. */
function nameSliders() {
  for (const range of document.querySelectorAll("#sampling input[type=range]")) {
    const label = range.closest(".block")?.querySelector("[data-testid=block-info]");
    const block = /** @type {HTMLElement | null} */ (range.closest(".block"));
    if (label?.textContent) range.setAttribute("aria-label", label.textContent.trim());
    if (block) block.title = block.querySelector(".info-text")?.textContent?.trim() ?? "";
  }
}

/** Gradio builds the page after this module has run. */
function whenBuilt() {
  const sliders = document.querySelectorAll("#sampling input[type=range]").length;
  if (sliders < LEAST_SLIDERS || !button("#seed input") || !button("#generate") || !button("#theme")) return false;
  applyTheme();
  nameSliders();
  foldOnPhones();
  document.documentElement.dataset.ready = "true";
  return true;
}

Object.assign(window, { playground: { settingsChanged } });
settingsChanged();
document.addEventListener("click", clicked);
document.addEventListener("keydown", pressed);
document.addEventListener("playground:ask-settings", tellSettings);
document.addEventListener("playground:words", (event) => {
  words = { ...words, .../** @type {CustomEvent} */ (event).detail };
  tellSettings();
});
document.addEventListener("playground:example", (event) => {
  void useExample(String(/** @type {CustomEvent} */ (event).detail?.prompt ?? ""));
});
if (!whenBuilt()) {
  const waiting = new MutationObserver(() => {
    if (whenBuilt()) waiting.disconnect();
  });
  waiting.observe(document.documentElement, { childList: true, subtree: true });
}
