// @ts-check
/** A menu of the heads that were found to be the best of each kind; it is hidden where nothing was measured. */
import { el } from "./dom.js";

/** What the kinds of models/heads.py are called here, and what their score is. */
const KINDS = /** @type {Record<string, [string, string]>} */ ({
  previous_token: ["previous token", "attention to the token just before the query"],
  induction: ["induction", "attention to what followed the same token earlier, on repeated random tokens"],
  duplicate_token: ["duplicate token", "attention to the same token earlier, on repeated random tokens"],
  first_token: ["first-token sink", "attention to the first token"],
  local: ["local", "attention to the query itself and the three tokens before it"],
});

const HELP = [
  "Heads of this model with the highest scores, each a mean share of attention measured once on many texts:",
  ...Object.values(KINDS).map(([name, meaning]) => `${name}: ${meaning}`),
].join("\n");

/** @param {(head: {layer: number, head: number}) => void} chosen */
export function headMenu(chosen) {
  // the name must not hold the word of the picker beside it: whoever looks for "Head" means that one
  const select = el("select", { "aria-label": "Best of each kind", title: HELP });
  const root = el("label.lv-picker.lv-heads", { hidden: true }, select);
  select.addEventListener("change", () => {
    const [layer, head] = select.value.split(".").map(Number);
    if (select.value) chosen({ layer, head });
  });
  let shown = "";
  return {
    root,
    /** @param {string} run @param {import('./types.js').HeadScore[]} heads @param {number} layer @param {number} head */
    fill(run, heads, layer, head) {
      root.hidden = !heads.length;
      if (run !== shown) select.replaceChildren(new Option("Best of …", ""), ...groups(heads));
      shown = run;
      const value = `${layer}.${head}`;
      if (select.value === value) return; // one head may stand under several kinds: keep the one that was chosen
      select.value = heads.some((each) => value === `${each.layer}.${each.head}`) ? value : "";
    },
  };
}

/** @param {import('./types.js').HeadScore[]} heads */
function groups(heads) {
  const found = Object.entries(KINDS).filter(([kind]) => heads.some((each) => each.kind === kind));
  return found.map(([kind, [name]]) => {
    const options = heads.filter((each) => each.kind === kind).map(option);
    return el("optgroup", { label: name }, ...options);
  });
}

/** @param {import('./types.js').HeadScore} found */
function option({ layer, head, score }) {
  return new Option(`L${layer} H${head} · ${score.toFixed(2)}`, `${layer}.${head}`); // as the mosaic names them
}
