"""One sentence beside the prompt: what is wrong with it, or nothing."""

from __future__ import annotations

import gradio as gr

from playground.web.live import STATIC

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


def words_note() -> gr.HTML:
    """What the tokenizer makes of typed words; the value is {notes, settings} or {refused}."""
    return gr.HTML(
        None,
        html_template='<ul role="status" class="words-note"></ul>',
        js_on_load=(STATIC / "words_bootstrap.js").read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id="words-note",
        padding=False,
    )
