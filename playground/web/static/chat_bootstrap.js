// Gradio runs this once for each time the component appears, with `element`, `props` and `watch` in scope.
import(new URL("static/chat.js", document.baseURI).href)
  .then((chat) => chat.mount(element, { props, watch }))
  .catch((error) => console.error(error));
