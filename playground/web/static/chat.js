// @ts-check
/** The conversation so far, one turn after another; what is said is text and never markup. */
import { el } from "./dom.js";

const NAMES = { system: "System", user: "You", assistant: "Assistant" };

/** @param {{role: 'system'|'user'|'assistant', content: string}} turn */
const turnRow = ({ role, content }) => el(`li.turn-${role}`, {}, el("b", {}, NAMES[role]), el("p", {}, content));

/**
 * @param {HTMLElement} element
 * @param {{props: any, watch: (name: string, seen: () => void) => void}} gradio
 */
export function mount(element, { props, watch }) {
  const root = /** @type {HTMLElement} */ (element.querySelector(".turns"));
  if (root.dataset.mounted) return;
  root.dataset.mounted = "true";
  const list = el("ol", { "aria-label": "Conversation" });
  const note = el("p.turns-note", { role: "status" });
  root.append(list, note);
  const receive = () => {
    if (!props.value) return;
    const { turns, note: words } = JSON.parse(JSON.stringify(props.value));
    list.replaceChildren(...turns.map(turnRow));
    list.scrollTop = list.scrollHeight;
    note.textContent = words;
    root.dataset.turns = String(turns.length);
  };
  watch("value", receive);
  receive();
}
