// @ts-check
/** Building elements. Text always goes in as text nodes: tokens may hold any characters. */

/**
 * @param {string} tag `name.class.class`
 * @param {Record<string, any>} [attributes] `on` holds listeners, `style` an object of CSS properties
 * @param {...(Node|string|null)} children
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) setAttribute(node, key, value);
  for (const child of children) if (child !== null) node.append(child);
  return node;
}

/** @param {HTMLElement} node @param {string} key @param {any} value */
function setAttribute(node, key, value) {
  if (key === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
  else if (key === "style") for (const [name, css] of Object.entries(value)) node.style.setProperty(name, css);
  else if (value === true) node.setAttribute(key, "");
  else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, String(value));
}

/** Write only what changed: layout stays untouched otherwise. @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {HTMLElement} node @param {string} name @param {string} value */
export function setData(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
