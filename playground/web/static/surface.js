// @ts-check
/** A canvas in two layers (data below, pointer above) that follows its box and the screen's pixel ratio. */
import { el } from "./dom.js";

export class Surface {
  /**
   * @param {HTMLElement} host
   * @param {() => string} paper colour under the data: an opaque canvas costs the screen less than one to look through
   * @param {() => void} resized draws at once: a canvas that takes another size is empty
   */
  constructor(host, paper, resized) {
    this.paper = paper;
    this.host = host;
    this.base = el("canvas.lv-base", { "aria-hidden": "true" });
    this.over = el("canvas.lv-over", { "aria-hidden": "true", hidden: true });
    host.append(this.base, this.over);
    this.width = 0;
    this.height = 0;
    this.ratio = 1;
    this.resized = resized;
    new ResizeObserver(() => this.measure()).observe(host);
  }

  /** Called by the observer alone: only then is asking for the layout free. */
  measure() {
    const width = this.host.clientWidth;
    const height = this.host.clientHeight;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    if (width === this.width && height === this.height && ratio === this.ratio) return;
    Object.assign(this, { width, height, ratio });
    if (!this.visible) return; // what was drawn stays until there is room again
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.begin("base"); // no black, whether or not there is something to draw
    this.resized();
  }

  get visible() {
    return this.width > 8 && this.height > 8; // the observer reports 0 while hidden; asking the layout here would be slow
  }

  /** @param {'base'|'over'} layer @returns {CanvasRenderingContext2D} cleared, in CSS pixels */
  begin(layer) {
    const pen = this[layer].getContext("2d", { alpha: layer === "over" });
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (layer === "base")
      this.erase(pen, 0, 0, this.width + 1, this.height + 1); // + 1: sizes are rounded
    else {
      this.over.hidden = false;
      pen.clearRect(0, 0, this.width, this.height);
    }
    return readied(pen);
  }

  /** @param {CanvasRenderingContext2D} pen of the base @param {number} x @param {number} y @param {number} width @param {number} height */
  erase(pen, x, y, width, height) {
    pen.fillStyle = this.paper();
    pen.fillRect(x, y, width, height);
  }

  /** Nothing to mark: a layer that is not there costs the screen nothing. */
  unmark() {
    this.over.hidden = true;
  }

  /** Pointer position in CSS pixels. @param {PointerEvent|MouseEvent} event */
  point(event) {
    const box = this.host.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }
}

/** @param {CanvasRenderingContext2D} pen */
function readied(pen) {
  pen.textBaseline = "middle";
  pen.lineJoin = "round";
  return pen;
}

/** What stays the same from frame to frame (axes, labels): drawn once off screen, then copied pixel by pixel. */
export class Sheet {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.key = "";
  }

  /**
   * @param {CanvasRenderingContext2D} pen of a surface
   * @param {{x: number, y: number, width: number, height: number}} box what it covers, in CSS pixels
   * @param {any[]} facts all that the drawing depends on, besides the box
   * @param {(pen: CanvasRenderingContext2D) => void} draw
   */
  draw(pen, box, facts, draw) {
    const ratio = pen.getTransform().a;
    const [left, top] = [Math.floor(box.x * ratio), Math.floor(box.y * ratio)];
    const key = [box.x, box.y, box.width, box.height, ratio, ...facts].join();
    if (key !== this.key) {
      this.key = key;
      this.canvas.width = Math.max(1, Math.ceil((box.x + box.width) * ratio) - left);
      this.canvas.height = Math.max(1, Math.ceil((box.y + box.height) * ratio) - top);
      const own = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
      own.setTransform(ratio, 0, 0, ratio, -left, -top);
      draw(readied(own));
    }
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.drawImage(this.canvas, left, top);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
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

  /** @param {number} [from] the first row of pixels that changed */
  flush(from = 0) {
    const pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    pen.putImageData(this.image, 0, 0, 0, from, this.width, this.height - from);
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
