"""Colours and sizes of Gradio's own widgets; everything else takes them from the CSS variables in static/app.css."""

from __future__ import annotations

import gradio as gr
from gradio.themes.utils import colors, sizes

SANS = ("-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Liberation Sans", "Arial", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


VARIABLES = {
    "body_background_fill": "var(--page)",
    "body_text_color": "var(--ink)",
    "body_text_color_subdued": "var(--ink-soft)",
    "background_fill_primary": "var(--surface)",
    "background_fill_secondary": "var(--page)",
    "block_background_fill": "transparent",
    "block_border_width": "0px",
    "block_shadow": "none",
    "block_label_text_color": "var(--ink-soft)",
    "block_title_text_color": "var(--ink)",
    "border_color_primary": "var(--line)",
    "input_background_fill": "var(--surface)",
    "input_border_color": "var(--line-strong)",
    "input_border_color_focus": "var(--accent)",
    "input_shadow": "none",
    "slider_color": "var(--accent)",
    "button_primary_background_fill": "var(--accent)",
    "button_primary_background_fill_hover": "var(--accent-strong)",
    "button_primary_border_color": "var(--accent)",
    "button_primary_text_color": "var(--on-accent)",
    "button_primary_text_color_hover": "var(--on-accent)",
    "button_secondary_background_fill": "var(--surface)",
    "button_secondary_background_fill_hover": "var(--hover)",
    "button_secondary_border_color": "var(--line-strong)",
    "button_secondary_text_color": "var(--ink)",
    "color_accent_soft": "var(--accent-soft)",
}
"""Gradio's variables, the same in light and dark: ours change their values themselves."""


def theme() -> gr.themes.Base:
    """System fonts, small spacing, and buttons whose text has a contrast of at least 4.5:1 on its ground."""
    base = gr.themes.Base(
        primary_hue=colors.indigo,
        secondary_hue=colors.indigo,
        neutral_hue=colors.slate,
        spacing_size=sizes.spacing_sm,
        radius_size=sizes.radius_sm,
        text_size=sizes.text_sm,
        font=SANS,
        font_mono=MONO,
    )
    dark = {f"{name}_dark": value for name, value in VARIABLES.items()}
    return base.set(**VARIABLES, **dark, block_title_text_weight="500", color_accent="var(--accent)")
