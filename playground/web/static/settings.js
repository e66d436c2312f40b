// @ts-check
// What the settings column does without asking the server: tells the panels about moved sliders, fills in examples,
// draws a seed, switches between light and dark.

/** Names in the order of the widgets, as in layout.py. */
const NAMES = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "seed"];
const RECUT = new Set(NAMES.slice(0, 5));
const PHONE = "(max-width: 767px)";

/** @param {unknown[]} values of all settings */
function settingsChanged(values) {
  const named = NAMES.map((name, i) => /** @type {const} */ ([name, Number(values[i])]));
  const detail = Object.fromEntries(named.filter(([name]) => RECUT.has(name)));
  document.dispatchEvent(new CustomEvent("playground:settings", { detail }));
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

/** Screen readers should hear "Temperature", not "range slider for Temperature". */
function nameSliders() {
  for (const range of document.querySelectorAll("#sampling input[type=range]")) {
    const label = range.closest(".block")?.querySelector("[data-testid=block-info]");
    if (label?.textContent) range.setAttribute("aria-label", label.textContent.trim());
  }
}

/** Gradio builds the page after this module has run. */
function whenBuilt() {
  const sliders = document.querySelectorAll("#sampling input[type=range]").length;
  if (sliders < NAMES.length - 1 || !button("#seed input") || !button("#generate") || !button("#theme")) return false;
  applyTheme();
  nameSliders();
  foldOnPhones();
  document.documentElement.dataset.ready = "true";
  return true;
}

Object.assign(window, { playground: { settingsChanged } });
document.addEventListener("click", clicked);
document.addEventListener("keydown", pressed);
document.addEventListener("playground:example", (event) => {
  void useExample(String(/** @type {CustomEvent} */ (event).detail?.prompt ?? ""));
});
if (!whenBuilt()) {
  const waiting = new MutationObserver(() => {
    if (whenBuilt()) waiting.disconnect();
  });
  waiting.observe(document.documentElement, { childList: true, subtree: true });
}
