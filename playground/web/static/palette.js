// @ts-check
/** The theme's colours for canvases: read from CSS variables, read again when light turns dark. */

const STOPS = 7;

/** @param {string} hex `#rrggbb` @returns {number[]} */
function channels(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** Relative luminance of WCAG 2. @param {number[]} rgb */
function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c <= 10.3 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Of two inks the one that reads better on a background. @param {number[]} back @param {string[]} inks */
function bestInk(back, inks) {
  const contrast = inks.map((ink) => {
    const [a, b] = [luminance(back), luminance(channels(ink))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
  return contrast[0] >= contrast[1] ? inks[0] : inks[1];
}

/** 256 colours between the stops. @param {string[]} stops @returns {number[][]} */
function ramp(stops) {
  const points = stops.map(channels);
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (points.length - 1);
    const low = Math.min(Math.floor(at), points.length - 2);
    return points[low].map((c, j) => Math.round(c + (points[low + 1][j] - c) * (at - low)));
  });
}

/** @param {number[]} rgb as one little-endian RGBA number for ImageData */
const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

/** @param {HTMLElement} root */
function readColors(root) {
  const css = getComputedStyle(root);
  const get = (/** @type {string} */ name) => css.getPropertyValue(`--lv-${name}`).trim() || "#888888";
  return {
    panel: get("panel"),
    sunk: get("sunk"),
    line: get("line"),
    grid: get("grid"),
    ink: get("ink"),
    muted: get("muted"),
    faint: get("faint"),
    faintText: get("faint-text"),
    accent: get("accent"),
    accentSoft: get("accent-soft"),
    ghost: get("ghost"),
    bar: get("bar"),
    q: get("q"),
    k: get("k"),
    v: get("v"),
    qText: get("q-text"),
    kText: get("k-text"),
    vText: get("v-text"),
    sans: get("sans"),
    stops: Array.from({ length: STOPS }, (_, i) => get(`seq-${i}`)),
    chipInks: [get("chip-dark"), get("chip-light")],
  };
}

/** @typedef {ReturnType<typeof readColors>} Colors */

export class Palette {
  /** @param {HTMLElement} root @param {() => void} changed */
  constructor(root, changed) {
    this.root = root;
    this.colors = readColors(root);
    this.version = 0; // pictures made with other colours are out of date
    this.ramp = ramp(this.colors.stops);
    this.lut = Uint32Array.from(this.ramp, packed);
    this.inks = this.ramp.map((rgb) => bestInk(rgb, this.colors.chipInks));
    const again = () => {
      this.read();
      changed();
    };
    this.observer = new MutationObserver(again);
    this.observer.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  read() {
    this.colors = readColors(this.root);
    this.version++;
    this.ramp = ramp(this.colors.stops);
    this.lut = Uint32Array.from(this.ramp, packed);
    this.inks = this.ramp.map((rgb) => bestInk(rgb, this.colors.chipInks));
  }

  get dark() {
    return document.body.classList.contains("dark");
  }

  get maskPixel() {
    return packed(channels(this.colors.sunk));
  }

  /** Canvas font. @param {number} size px @param {number|string} [weight] */
  font(size, weight = 400) {
    return `${weight} ${size}px ${this.colors.sans}`;
  }

  /** Colour of a probability: the scale runs over its square root. @param {number} p */
  probability(p) {
    return this.level(Math.sqrt(p));
  }

  /** Colour of a level in 0..1. @param {number} level */
  level(level) {
    const [r, g, b] = this.ramp[Math.max(0, Math.min(255, Math.round(level * 255)))];
    return `rgb(${r},${g},${b})`;
  }

  /** Ink that reads on `probability(p)`. @param {number} p */
  inkOn(p) {
    return this.inks[Math.max(0, Math.min(255, Math.round(Math.sqrt(p) * 255)))];
  }
}
