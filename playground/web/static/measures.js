// @ts-check
/** Measures: a pasted text scored token by token, and samples under several settings side by side. */
import { Palette } from "./palette.js";
import { SettingsComparison } from "./settings_comparison.js";
import { TextScore } from "./text_score.js";

/**
 * @param {HTMLElement & {measures?: any}} root
 * @param {{props: any, trigger: import('./section.js').Tell, watch: (name: string, seen: () => void) => void}} gradio
 */
export function mount(root, { props, trigger, watch }) {
  if (root.measures) return;
  const palette = new Palette(root, () => score.repaint());
  const score = new TextScore(palette, trigger);
  const comparison = new SettingsComparison(props.most, trigger);
  root.replaceChildren(score.section.root, comparison.section.root);
  root.measures = { score, comparison };
  watch("value", () => {
    if (!props.value) return;
    const answer = JSON.parse(JSON.stringify(props.value)); // Gradio wraps values in slow proxies
    (answer.kind === "score" ? score : comparison).take(answer);
  });
}
