"""One sentence beside the prompt: what is wrong with it, or nothing."""

from __future__ import annotations

import gradio as gr

# The sentence reaches the page as text, never as markup: a template would be evaluated.
_ON_LOAD = """
const line = element.querySelector('[role=alert]');
document.addEventListener('playground:notice', (event) => {
  line.textContent = event.detail;
  document.body.classList.toggle('has-notice', event.detail !== '');
});
"""


def notice() -> gr.HTML:
    """Shows the sentence that the live view tells: it is the one that hears of refusals.

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
