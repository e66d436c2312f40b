// Gradio runs this once for each time the component appears, with `element`, `props`, `trigger` and `watch` in scope.
// The component tells Python of three events, "score", "compare" and "halt": Gradio looks for their names in this file.
import(new URL("static/measures.js", document.baseURI).href)
  .then((measures) => measures.mount(element.querySelector("#measures"), { props, trigger, watch }))
  .catch((error) => {
    element.querySelector("#measures").textContent = "The measures could not be loaded: reload the page.";
    console.error(error);
  });
