// @ts-check
/** A canvas in two layers (data below, pointer above) that follows its box and the screen's pixel ratio. */
import { el } from "./dom.js";

export class Surface {
  /** @param {HTMLElement} host @param {() => void} resized */
  constructor(host, resized) {
    this.host = host;
    this.base = el("canvas.lv-base", { "aria-hidden": "true" });
    this.over = el("canvas.lv-over", { "aria-hidden": "true" });
    host.append(this.base, this.over);
    this.width = 0;
    this.height = 0;
    this.ratio = 1;
    this.resized = resized;
    new ResizeObserver(() => this.measure()).observe(host);
    this.measure();
  }

  measure() {
    const width = this.host.clientWidth;
    const height = this.host.clientHeight;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    if (width === this.width && height === this.height && ratio === this.ratio) return;
    Object.assign(this, { width, height, ratio });
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.resized();
  }

  get visible() {
    return this.width > 8 && this.height > 8; // the observer reports 0 while hidden; asking the layout here would be slow
  }

  /** @param {'base'|'over'} layer @returns {CanvasRenderingContext2D} cleared, in CSS pixels */
  begin(layer) {
    const canvas = this[layer];
    const pen = canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    return pen;
  }

  /** Pointer position in CSS pixels. @param {PointerEvent|MouseEvent} event */
  point(event) {
    const box = this.host.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }
}

/** An off-screen picture that is written pixel by pixel and then drawn at once. */
export class Bitmap {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.width = 0;
    this.height = 0;
    this.image = new ImageData(1, 1);
    this.pixels = new Uint32Array(1);
  }

  /** @param {number} width @param {number} height device pixels */
  resize(width, height) {
    if (this.width === width && this.height === height) return;
    Object.assign(this, { width, height });
    this.canvas.width = width;
    this.canvas.height = height;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  flush() {
    /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d")).putImageData(this.image, 0, 0);
  }
}

/**
 * For each of `pixels` pixels over `cells` cells: the first cell and one past the last that it covers.
 * @param {number} pixels @param {number} cells may be fractional
 */
export function coverage(pixels, cells) {
  const first = new Int32Array(pixels);
  const end = new Int32Array(pixels);
  for (let i = 0; i < pixels; i++) {
    first[i] = Math.floor((i * cells) / pixels + 1e-9);
    end[i] = Math.max(first[i] + 1, Math.ceil(((i + 1) * cells) / pixels - 1e-9));
    // fewer cells than pixels: each pixel shows one cell, so borders stay sharp
    if (cells <= pixels) end[i] = first[i] + 1;
  }
  return { first, end };
}

/** @type {Map<string, string>} measuring text is slow, and the same few labels come again and again */
const fitted = new Map();

/** Text cut to a width with an ellipsis. @param {CanvasRenderingContext2D} pen @param {string} text @param {number} width */
export function fitText(pen, text, width) {
  const key = `${pen.font}|${width}|${text}`;
  const known = fitted.get(key);
  if (known !== undefined) return known;
  const chars = [...text.slice(0, 64)];
  let cut = text;
  while (chars.length > 1 && pen.measureText(cut).width > width) {
    chars.pop();
    cut = `${chars.join("")}…`;
  }
  if (fitted.size > 4000) fitted.clear();
  fitted.set(key, cut);
  return cut;
}

/** @param {CanvasRenderingContext2D} pen @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 */
export function line(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}
