// Gradio runs this once for each time the component appears, with `element`, `props`, `trigger`, `server` and `watch`
// in scope. The component tells Python of two events, "branch" and "act": Gradio looks for their names in this file.
// The address is relative to the page, so that the app can live below any path.
import(new URL("static/live.js", document.baseURI).href)
  .then((live) => live.mount(element, { props, trigger, server, watch }))
  .catch((error) => {
    element.querySelector("#live").textContent = "The live view could not be loaded: reload the page.";
    console.error(error);
  });
