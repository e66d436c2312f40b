// Gradio runs this once for each time the component appears, with `element`, `props` and `watch` in scope.
// What the tokenizer made of the typed words: notes for people, token ids for the live view.
const list = element.querySelector("[role=status]");
const show = () => {
  const { notes = [], settings = {}, refused = "" } = props.value ?? {};
  const lines = (refused ? [refused] : notes).map((text) => {
    const line = document.createElement("li");
    line.textContent = text;
    return line;
  });
  list.replaceChildren(...lines);
  list.classList.toggle("refused", refused !== "");
  document.dispatchEvent(new CustomEvent("playground:words", { detail: settings }));
};
watch("value", show);
show();
