// @ts-check
/** The block of a design as a drawing: boxes, the stream beside them, sums, and sizes on the arrows. */

/**
 * @typedef {{kind: string, name: string, lines: string[]}} Part
 * @typedef {{shared: Part[], branches: Part[][], after: Part[]}} Stage
 * @typedef {{layers: number, stream: string, embedding: string[], stages: Stage[], final: string, head: string[],
 *   logits: string}} Diagram
 */

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 440;
const MIDDLE = 236;
const BESIDE = 28;
const LINE = 16;
const GAP = 26;

/** @param {string} tag @param {Record<string, string|number>} attributes @param {string} [text] */
function node(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

class Pen {
  /** @param {Set<string>} differing names and lines of the parts that another design has otherwise */
  constructor(differing) {
    this.differing = differing;
    this.root = node("svg", { class: "arch-diagram", role: "img" });
    this.y = 8;
  }

  /** @param {number} x @param {number} from @param {number} to @param {string} [label] */
  arrow(x, from, to, label) {
    this.root.append(node("path", { class: "arch-line", d: `M${x} ${from}V${to - 5}` }));
    this.root.append(node("path", { class: "arch-tip", d: `M${x - 4} ${to - 6}h8l-4 6z` }));
    if (label) this.root.append(node("text", { class: "arch-size", x: x + 8, y: (from + to) / 2 + 3 }, label));
  }

  /** @param {number} x @param {number} y @param {number} width @param {Part} part @returns {number} its height */
  box(x, y, width, part) {
    const height = 12 + LINE * (1 + part.lines.length);
    const differs = this.differing.has(keyOf(part));
    const kind = `arch-box arch-${part.kind}${differs ? " arch-differs" : ""}`;
    this.root.append(node("rect", { class: kind, x: x - width / 2, y, width, height, rx: 4 }));
    const name = differs ? `≠ ${part.name}` : part.name;
    this.root.append(node("text", { class: "arch-name", x, y: y + LINE + 1 }, name));
    part.lines.forEach((line, index) => {
      this.root.append(node("text", { class: "arch-detail", x, y: y + LINE * (index + 2) + 1 }, line));
    });
    return height;
  }

  /** Parts below one another. @param {number} x @param {number} y @param {number} width @param {Part[]} parts */
  column(x, y, width, parts) {
    for (const part of parts) {
      this.arrow(x, y, y + GAP);
      y += GAP + this.box(x, y + GAP, width, part);
    }
    return y;
  }

  /** One stage of the block, from the stream back to it. @param {Stage} stage @param {string} stream */
  stage(stage, stream) {
    const start = this.y;
    this.root.append(node("text", { class: "arch-size", x: MIDDLE + 8, y: start + 14 }, stream));
    this.root.append(node("circle", { class: "arch-dot", cx: MIDDLE, cy: start, r: 2.5 }));
    const split = this.column(MIDDLE, start, 190, stage.shared);
    const two = stage.branches.length === 2;
    const centres = two ? [138, 336] : [MIDDLE];
    if (two) this.root.append(node("path", { class: "arch-line", d: `M${centres[0]} ${split}H${centres[1]}` }));
    const ends = stage.branches.map((parts, index) => this.column(centres[index], split, two ? 186 : 220, parts));
    const sum = Math.max(...ends) + GAP;
    ends.forEach((end, index) => {
      if (!two) this.arrow(MIDDLE, end, sum - 9);
      else this.root.append(node("path", { class: "arch-line", d: `M${centres[index]} ${end}V${sum}H${MIDDLE}` }));
    });
    this.root.append(node("path", { class: "arch-stream", d: `M${MIDDLE} ${start}H${BESIDE}V${sum}H${MIDDLE - 9}` }));
    this.root.append(node("circle", { class: "arch-sum", cx: MIDDLE, cy: sum, r: 9 }));
    this.root.append(node("path", { class: "arch-plus", d: `M${MIDDLE - 5} ${sum}h10M${MIDDLE} ${sum - 5}v10` }));
    const end = this.column(MIDDLE, sum + 9, 190, stage.after);
    this.root.append(node("path", { class: "arch-line", d: `M${MIDDLE} ${end}V${end + 16}` }));
    this.y = end + 16;
  }

  /** @param {string} name @param {string[]} lines @param {string} [label] of the arrow that follows */
  outer(name, lines, label) {
    this.y += this.box(MIDDLE, this.y, 340, { kind: "outer", name, lines });
    if (label) {
      this.arrow(MIDDLE, this.y, this.y + GAP, label);
      this.y += GAP;
    }
  }
}

/** @param {Part} part */
const keyOf = (part) => `${part.kind}|${part.name}|${part.lines.join("|")}`;

/** @param {Diagram} diagram @returns {Set<string>} */
function keysOf(diagram) {
  const ends = [
    { kind: "outer", name: "Embedding", lines: diagram.embedding },
    { kind: "outer", name: "Output head", lines: diagram.head },
  ];
  const inside = diagram.stages.flatMap((stage) => [...stage.shared, ...stage.branches.flat(), ...stage.after]);
  return new Set([...ends, ...inside].map(keyOf));
}

/**
 * @param {Diagram} diagram
 * @param {Diagram|null} other what it is compared with: parts that are not the same there are marked
 * @param {string} title for those who do not see it
 */
export function draw(diagram, other, title) {
  const theirs = other ? keysOf(other) : null;
  const pen = new Pen(new Set(theirs ? [...keysOf(diagram)].filter((key) => !theirs.has(key)) : []));
  pen.outer("Embedding", diagram.embedding, diagram.stream);
  const top = pen.y;
  const frame = node("rect", { class: "arch-frame", x: 8, y: top, width: WIDTH - 16, rx: 6 });
  pen.root.append(frame);
  pen.y += 30;
  const more = other && other.layers !== diagram.layers ? "≠ " : "";
  pen.root.append(node("text", { class: "arch-times", x: 20, y: top + 20 }, `${more}${diagram.layers} × this block`));
  for (const stage of diagram.stages) pen.stage(stage, diagram.stream);
  frame.setAttribute("height", String(pen.y - top));
  pen.arrow(MIDDLE, pen.y, pen.y + GAP, diagram.stream);
  pen.y += GAP;
  if (diagram.final) pen.outer(`${diagram.final} at the end`, [], diagram.stream);
  pen.outer("Output head", diagram.head, diagram.logits);
  pen.root.append(node("text", { class: "arch-name", x: MIDDLE, y: pen.y + 14 }, "logits"));
  pen.root.setAttribute("viewBox", `0 0 ${WIDTH} ${pen.y + 24}`);
  pen.root.setAttribute("aria-label", title);
  return pen.root;
}
