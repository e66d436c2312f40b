// @ts-check
/** Small line drawings for panels that have nothing to show yet: what will stand there. */

export const SVG = "http://www.w3.org/2000/svg";

/** @param {string} name @param {Record<string, string|number>} attributes */
function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  return node;
}

/** A path of a class. @param {string} d @param {string} name */
export const line = (d, name) => shape("path", { d, class: name });

/** Tiles with causal triangles. */
function tiles() {
  const out = [];
  for (let i = 0; i < 8; i++) {
    const [x, y] = [8 + (i % 4) * 30, 4 + Math.floor(i / 4) * 30];
    out.push(shape("rect", { x, y, width: 26, height: 26, class: "thin" }));
    out.push(shape("path", { d: `M${x} ${y}v26h26z`, class: "fill" }));
  }
  return out;
}

/** Dials with two hands. */
function dials() {
  return [24, 64, 104].flatMap((x, i) => {
    const [a, b] = [0.6 + i * 1.7, 1.5 + i * 0.8];
    return [
      shape("circle", { cx: x, cy: 32, r: 17, class: "thin" }),
      shape("path", { d: `M${x} 32L${x + 15 * Math.cos(a)} ${32 - 15 * Math.sin(a)}`, class: "q" }),
      shape("path", { d: `M${x} 32L${x + 12 * Math.cos(b)} ${32 - 12 * Math.sin(b)}`, class: "k" }),
    ];
  });
}

/** Candidates as bars, one of them drawn. */
function bars() {
  return [96, 72, 40, 22].flatMap((width, i) => [
    shape("rect", { x: 8, y: 5 + i * 14, width: width + 14, height: 9, class: "fill" }),
    shape("rect", { x: 8, y: 5 + i * 14, width, height: 9, class: i === 1 ? "accent" : "solid" }),
  ]);
}

/** Memory that grows. */
function wedge() {
  return [
    shape("path", { d: "M8 56L120 32V56z", class: "kfill" }),
    shape("path", { d: "M8 56L120 32V8z", class: "vfill" }),
    shape("path", { d: "M8 56H120", class: "thin" }),
  ];
}

const DRAWINGS = /** @type {Record<string, () => SVGElement[]>} */ ({
  attention: tiles,
  rope: dials,
  next: bars,
  cache: wedge,
});

/** @param {string} id of a panel */
export function sketch(id) {
  const svg = shape("svg", {
    viewBox: "0 0 128 64",
    width: 128,
    height: 64,
    class: "lv-sketch",
    "aria-hidden": "true",
  });
  svg.append(...DRAWINGS[id]());
  return svg;
}
