"""The live component: an empty place on the page that the modules in static/ fill and keep up to date.

Its value is one frame of playground/frames.py as a JSON string (or the frame itself, or a list of frames), or a
refusal, {"refused": sentence, "at": number}, where the number makes equal sentences differ. The text of prompts and
tokens travels in the value only and never in a template, which Gradio would evaluate.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.component_meta import ComponentMeta

STATIC = Path(__file__).parent / "static"

# Constant, so that Gradio never redraws what the modules have built inside.
PLACE = '<div id="live" data-state="idle" data-run="" data-step="" data-steps="0"></div>'


class WithoutStub(ComponentMeta):
    """Gradio's metaclass writes a stub file beside the source of each component class; this one does not."""

    def __new__(mcs, name: str, bases: tuple[type, ...], attrs: dict[str, Any]) -> type:
        """The class, and nothing besides."""
        return ABCMeta.__new__(mcs, name, bases, attrs)


class Live(gr.HTML, metaclass=WithoutStub):
    """The tokens and the four panels of a run.

    Args:
        server_functions: what the browser may ask for, each taking one dictionary: focus, rows, keys, angles, details,
            waterfall, logits, texts, backfill, figure, tree, replay, compare.
    """

    def __init__(
        self,
        value: Any = None,
        *,
        server_functions: Sequence[Callable[..., Any]] | None = None,
        **place: Any,
    ) -> None:
        super().__init__(
            value,
            html_template=PLACE,
            css_template="",
            js_on_load=(STATIC / "bootstrap.js").read_text(encoding="utf-8"),
            apply_default_css=False,
            padding=False,
            server_functions=list(server_functions or ()),
            **place,
        )

    def postprocess(self, value: Any) -> Any:
        """Frames pass as they are: they may hold any text, tags included, and none of it becomes markup."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Schema of the value."""
        return {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]}
