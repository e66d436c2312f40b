import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["playground/web/static/**/*.js"],
    languageOptions: { ecmaVersion: 2022, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "no-implicit-globals": "error",
      "no-shadow": ["error", { hoist: "functions" }],
      "max-lines": ["error", 600],
      "max-lines-per-function": ["error", { max: 60, skipComments: true }],
      complexity: ["error", 20],
      // text of prompts and tokens must never become markup or code
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "Use text nodes." },
        { property: "outerHTML", message: "Use text nodes." },
        { property: "insertAdjacentHTML", message: "Use text nodes." },
      ],
    },
  },
  {
    // Gradio puts these names in scope
    files: ["playground/web/static/*bootstrap.js"],
    languageOptions: {
      globals: { element: "readonly", props: "readonly", trigger: "readonly", server: "readonly", watch: "readonly" },
    },
  },
];
