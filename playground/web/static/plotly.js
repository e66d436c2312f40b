// @ts-check
/** Plotly, loaded when it is first needed, and the numbers behind a figure as a file. */
import { el } from "./dom.js";

/** @type {Promise<any>|null} */
let loading = null;

/** Plotly is large, so it comes when it is first needed. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = el("script", { src: new URL("plotly.min.js", import.meta.url).href, async: true });
    script.addEventListener("load", () => resolve(/** @type {any} */ (window).Plotly));
    script.addEventListener("error", () => {
      loading = null;
      reject(new Error("Plotly could not be loaded"));
    });
    document.head.append(script);
  });
  return loading;
}

/** @param {{csv: string, filename: string}} table */
export function saveCsv({ csv, filename }) {
  const url = URL.createObjectURL(new Blob([csv], { type: "text/csv;charset=utf-8" }));
  const link = el("a", { href: url, download: `${filename}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
