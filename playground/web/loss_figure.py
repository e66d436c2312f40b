"""The loss curve of a trained checkpoint as a Plotly figure: drawn once, then read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

FONT = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"

# Gradio draws this figure on either ground and cannot be told which: these can be seen on both, and app.css gives the
# words the ink of the theme.
INK, GRID, TRAINED = "#85828f", "rgba(133, 130, 143, 0.25)", "#85828f"
CHECKED = ("#c2127d", "#0072b2", "#009e73", "#d55e00", "#6553ba")


def loss_figure(record: Mapping[str, Any]) -> go.Figure:
    """Loss against optimiser steps: the training batches as a line, each validation set with its points.

    Below it, where the record has them, how the attention heads formed: the best head's score of every kind.

    Args:
        record: {"unit", "train": {"step", "loss", ...}, "validation": {name: {"step", "loss", ...}},
            "heads": {"step", kind: scores, ...}}, as `models.training` writes it.
    """
    figure = go.Figure()
    named = [("training batches", record.get("train") or {}, TRAINED, "lines")]
    checked = sorted((record.get("validation") or {}).items())
    named += [
        (f"{name.replace('_', ' ')}, held out", found, CHECKED[i % len(CHECKED)], "lines+markers")
        for i, (name, found) in enumerate(checked)
    ]
    unit = record.get("unit", "nats per token")
    for name, found, colour, mode in named:
        if found.get("loss"):
            figure.add_scatter(
                x=found.get("step"),
                y=found["loss"],
                name=name,
                mode=mode,
                line={"color": colour, "width": 1.5},
                marker={"size": 5},
                hovertemplate=f"%{{y:.3f}} {unit}<br>step %{{x:,}}<extra>{name}</extra>",
            )
    heads = record.get("heads") or {}
    for i, kind in enumerate(name for name in heads if name != "step" and heads["step"]):
        figure.add_scatter(
            x=heads["step"],
            y=heads[kind],
            name=kind.replace("_", " "),
            mode="lines+markers",
            line={"color": CHECKED[i % len(CHECKED)], "width": 1.5},
            marker={"size": 5},
            yaxis="y2",
            legend="legend2",
            hovertemplate=f"%{{y:.3f}}<br>step %{{x:,}}<extra>best {kind.replace('_', ' ')} head</extra>",
        )
    styled = _styled(figure, unit)
    return _with_heads(styled) if heads.get("step") else styled


def _with_heads(figure: go.Figure) -> go.Figure:
    """Room for the scores of heads below the losses, on the same steps."""
    axis = figure.layout.yaxis.to_plotly_json()
    legend = {**figure.layout.legend.to_plotly_json(), "y": 0.36, "title": _heading("The best head of each kind")}
    figure.update_layout(
        yaxis={"domain": [0.58, 1.0]},
        yaxis2={**axis, "title": "score of the best head", "domain": [0.0, 0.34], "range": [0.0, 1.0]},
        legend2=legend,
        xaxis={"anchor": "y2"},
        height=680,
    )
    return figure


def _styled(figure: go.Figure, unit: str) -> go.Figure:
    axis = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True}
    # Above the lines, not on them: where they run is not known.
    legend: dict[str, Any] = {
        "orientation": "h",
        "x": 0,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
        "font": {"size": 11},
    }
    legend["title"] = _heading("Loss while it was trained")
    figure.update_xaxes(title="step", **axis)
    figure.update_yaxes(title=f"loss, {unit}", **axis)
    figure.update_layout(
        template="none",
        font={"family": FONT, "size": 12, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 48, "r": 16, "t": 40, "b": 48},
        legend=legend,
        height=420,
    )
    return figure


def _heading(text: str) -> dict[str, Any]:
    """A title that stands with its legend, so that neither covers the other however many lines the legend takes."""
    return {"text": text, "side": "top", "font": {"size": 14}}
