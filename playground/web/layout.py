"""What stands where on the page. Nothing here reacts: events.py does."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from playground.web import chat_box, knobs, models_tab
from playground.web.architecture import Architecture
from playground.web.examples import EXAMPLES
from playground.web.knobs import Knob
from playground.web.live import STATIC, Live
from playground.web.measuring import Measures, most
from playground.web.models_tab import Choices, ModelParts
from playground.web.notice import notice, words_note
from playground.web.order import Order

NAME = "Decoder Playground"


@dataclass(frozen=True)
class Page:
    """The parts of the page that events use; `settings` by name, in the order of `knobs.SETTINGS`.

    `asked` is not seen: its value is the prompt and the settings as they were when Generate was pressed.
    """

    blocks: gr.Blocks
    prompt: gr.Textbox
    settings: Mapping[str, gr.components.Component]
    presets: Mapping[str, gr.Button]
    words: gr.HTML
    generate: gr.Button
    stop: gr.Button
    asked: gr.HTML
    live: gr.HTML
    measures: Measures
    architecture: Architecture
    model: ModelParts
    talk: chat_box.Talk


def build(
    facts: Mapping[str, Any], new_tokens: int, server_functions: Sequence[Callable[..., Any]], choices: Choices
) -> Page:
    """The whole page.

    Args:
        facts: what there is to say about the model (`Capability.as_dict()`).
        new_tokens: the largest number of new tokens that may be asked for.
        server_functions: what the live component may ask the server.
        choices: the models that visitors may choose from.
    """
    with gr.Blocks(title=NAME, fill_width=True, analytics_enabled=False) as blocks:
        gr.HTML(_header(facts["card"]), elem_id="masthead", padding=False, apply_default_css=False)
        bar = models_tab.bar(facts)
        with gr.Tabs(elem_id="views"):
            with gr.Tab("Playground", elem_id="playground-view"), gr.Row(elem_id="bench", equal_height=False):
                with gr.Column(elem_id="settings", scale=0, min_width=296):
                    menu = models_tab.menu(choices)
                    prompt = _prompt()
                    generate, stop = _buttons()
                    talk = chat_box.build()
                    presets, settings, words = _sampling(new_tokens)
                    asked = gr.HTML(None, html_template="", visible="hidden", apply_default_css=False, padding=False)
                with gr.Column(elem_id="stage", scale=1, min_width=320):
                    live = Live(server_functions=list(server_functions))
            with gr.Tab("Measures", elem_id="measures-view"):
                measures = Measures(most(new_tokens))
            with gr.Tab("Architecture", elem_id="architecture-view"):
                architecture = Architecture()
            with gr.Tab("Model", elem_id="model-view"):
                model = models_tab.build(facts, choices, menu, bar)
    return Page(
        blocks, prompt, settings, presets, words, generate, stop, asked, live, measures, architecture, model, talk
    )


def head() -> str:
    """Style sheets and modules of the page, relative to it, so that it can live below any path."""
    sheets = [
        name
        for name in ("app.css", "settings.css", "models.css", "live.css", "measures.css", "architecture.css")
        if (STATIC / name).exists()
    ]
    links = [f'<link rel="stylesheet" href="static/{name}">' for name in sheets]
    return "\n".join([*links, '<script type="module" src="static/settings.js"></script>'])


def _header(facts: Mapping[str, Any]) -> str:
    model, device = html.escape(str(facts["name"])), html.escape(str(facts["device"]))
    details = f"{models_tab.count(facts['parameters'])} parameters · {html.escape(str(facts['dtype']))} on {device}"
    return (
        f'<h1>{NAME}</h1><p class="model" title="{details}"><b>{model}</b> <span>{details}</span></p>'
        '<button type="button" id="theme" class="quiet" aria-label="Switch between light and dark"></button>'
    )


def _prompt() -> gr.Textbox:
    prompt = gr.Textbox(
        EXAMPLES[0].prompt,
        label="Prompt",
        placeholder="A few words for the model to continue",
        lines=4,
        max_lines=8,
        elem_id="prompt",
    )
    notice()
    gr.HTML(_examples(), elem_id="examples", padding=False, apply_default_css=False)
    return prompt


def _examples() -> str:
    """Buttons that settings.js knows by their class."""
    made = (
        f'<button type="button" class="example" data-prompt="{html.escape(each.prompt)}" '
        f'title="{html.escape(each.hint)}">{html.escape(each.label)}</button>'
        for each in EXAMPLES
    )
    return f'<div role="group" aria-label="Examples">{"".join(made)}</div>'


def _buttons() -> tuple[gr.Button, gr.Button]:
    with gr.Row(elem_id="actions"):
        generate = gr.Button("Generate", variant="primary", elem_id="generate", min_width=120)
        stop = gr.Button("Stop", elem_id="stop", min_width=72, scale=0)
    return generate, stop


def _sampling(new_tokens: int) -> tuple[dict[str, gr.Button], dict[str, gr.components.Component], gr.HTML]:
    """Presets, settings by name, and the place for what the tokenizer makes of typed words."""
    with gr.Accordion("Sampling", open=True, elem_id="sampling"):
        presets = _presets()
        settings = {each.name: _widget(each) for each in knobs.BASIC}
        length = min(knobs.start("max_new_tokens"), new_tokens)
        settings["max_new_tokens"] = gr.Slider(1, new_tokens, length, step=1, label="Max new tokens")
        with gr.Row(elem_id="seed-row"):
            seed = gr.Number(knobs.start("seed"), label="Seed", precision=0, minimum=0, elem_id="seed", min_width=120)
            gr.Button("New seed", size="sm", elem_id="dice", scale=0, min_width=84)
        settings["seed"] = seed
        for group in knobs.GROUPS:
            with _folded(group.title, group.name):
                settings |= {each.name: _widget(each) for each in group.knobs}
        words = words_note()
        with _folded("Order of stages", "order"):
            settings["order"] = Order(knobs.start("order"), knobs.STAGE_LABELS, knobs.ORDERS)
    return presets, settings, words


def _presets() -> dict[str, gr.Button]:
    with gr.Row(elem_id="presets"):
        return {
            each.name: gr.Button(each.label, size="sm", elem_id=f"preset-{each.name}", min_width=0, scale=0)
            for each in knobs.PRESETS
        }


def _folded(title: str, name: str) -> gr.Accordion:
    return gr.Accordion(title, open=False, elem_id=f"group-{name}", elem_classes="knobs")


def _widget(knob: Knob) -> gr.components.Component:
    value = knobs.start(knob.name)
    words: dict[str, Any] = {"label": knob.label, "info": knob.hint or None}
    if knob.choices:
        return gr.Radio(list(knob.choices), value=value, **words)
    if isinstance(value, bool):
        return gr.Checkbox(value, **words)
    if knob.name in knobs.TYPED:
        return gr.Textbox(value, lines=2, max_lines=6, placeholder=knob.placeholder, **words)
    return gr.Slider(knob.low, knob.high, value, step=knob.step, **words)
