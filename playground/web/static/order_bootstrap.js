// Gradio runs this once for each time the component appears, with `element`, `props` and `watch` in scope.
import(new URL("static/order.js", document.baseURI).href)
  .then((order) => order.mount(element.querySelector(".order"), { props, watch, trigger }))
  .catch((error) => {
    element.querySelector(".order").textContent = "The list could not be loaded: reload the page.";
    console.error(error);
  });
