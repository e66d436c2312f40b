"""The list of stages that people put into their order, by dragging or with buttons; its value is the list of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from playground.web.live import STATIC, WithoutStub

PLACE = '<div class="order"></div>'


class Order(gr.HTML, metaclass=WithoutStub):
    """An ordered list.

    Args:
        value: the names in the order to begin with.
        labels: what people read in place of each name.
        orders: named orders, each a button that restores it.
    """

    def __init__(
        self, value: Sequence[str], labels: Mapping[str, str], orders: Mapping[str, Sequence[str]], **place: Any
    ) -> None:
        super().__init__(
            list(value),
            html_template=PLACE,
            css_template="",
            js_on_load=(STATIC / "order_bootstrap.js").read_text(encoding="utf-8"),
            apply_default_css=False,
            padding=False,
            labels={name: labels[name] for name in value},
            orders={name: list(each) for name, each in orders.items()},
            **place,
        )

    def preprocess(self, payload: Any) -> Any:
        """As it is: `Decoding` checks it."""
        return payload

    def postprocess(self, value: Any) -> Any:
        """As it is."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Schema of the value."""
        return {"type": "array", "items": {"type": "string"}}
