// Gradio runs this once for each time the component appears, with `element`, `props` and `watch` in scope: for the card
// of a model, and for the line that says how loading goes.
import(new URL("static/model_card.js", document.baseURI).href)
  .then((card) => {
    const mount = element.querySelector(".model-card") ? card.mountCard : card.mountStatus;
    mount(element, { props, watch });
  })
  .catch((error) => console.error(error));
