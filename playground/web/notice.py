"""One sentence beside the prompt: what is wrong with it, or nothing."""

from __future__ import annotations

import gradio as gr

# The sentence reaches the page as text, never as markup: a template would be evaluated.
_ON_LOAD = """
const line = element.querySelector('[role=alert]');
const show = () => {
  line.textContent = props.value?.text ?? '';
  document.body.classList.toggle('has-notice', line.textContent !== '');
};
watch('value', show);
show();
"""


def notice() -> gr.HTML:
    """Shows the `text` of its value, {"text": sentence, "at": number}; the number makes equal sentences differ.

    A function and not a subclass: for those Gradio writes a stub file beside the source.
    """
    return gr.HTML(
        None,
        html_template='<p role="alert" class="notice"></p>',
        js_on_load=_ON_LOAD,
        apply_default_css=False,
        elem_id="notice",
        padding=False,
    )
