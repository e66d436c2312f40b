// Gradio runs this once for each time the page "Architecture" appears; it finds the event by its quoted name, "opened".
import(new URL("static/architecture.js", document.baseURI).href)
  .then((page) => page.mount(element, server, (design) => trigger("opened", design)))
  .catch((error) => {
    element.querySelector("#architecture").textContent = "This page could not be loaded: reload it.";
    console.error(error);
  });
