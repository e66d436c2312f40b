"""The scored text as a Plotly figure: surprisal and expected surprisal, token by token; and the same as CSV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from playground.web.figures import DARK, LIGHT, Enlarged, csv_text, styled, visible

Floats = NDArray[np.float64]


def build(
    tokens: Sequence[str], surprisal: Floats, entropy: Floats, rank: NDArray[np.int64], dark: bool = False
) -> Enlarged:
    """The figure of a scored text.

    Args:
        tokens: all n + 1 tokens; the first was not scored.
        surprisal: (n,) nats.
        entropy: (n,) nats.
        rank: (n,) 0 for the likeliest.
        dark: for which ground.
    """
    palette = DARK if dark else LIGHT
    positions = np.arange(1, len(tokens))
    names = [visible(each) for each in tokens[1:]]
    figure = go.Figure()
    figure.add_bar(
        x=positions,
        y=surprisal,
        name="surprisal",
        marker={"color": palette.scale[4]},
        customdata=np.stack([np.array(names, dtype=object), np.exp(-surprisal), rank + 1], axis=1),
        hovertemplate="%{customdata[0]}<br>%{y:.3f} nats, p = %{customdata[1]:.4g}<br>rank %{customdata[2]}"
        "<extra>position %{x}</extra>",
    )
    figure.add_scatter(
        x=positions,
        y=entropy,
        name="entropy (expected surprisal)",
        mode="lines",
        line={"color": palette.accent, "width": 1.5},
        hovertemplate="%{y:.3f} nats expected<extra></extra>",
    )
    figure.update_xaxes(title="position")
    figure.update_yaxes(title="nats", rangemode="tozero")
    title = "Surprisal of each token"
    styled(figure, palette, title, height=320)
    columns = ("position", "token", "probability", "surprisal_nats", "surprisal_bits", "entropy_nats", "rank")
    rows = zip(
        positions.tolist(),
        tokens[1:],
        np.exp(-surprisal).tolist(),
        surprisal.tolist(),
        (surprisal / np.log(2)).tolist(),
        entropy.tolist(),
        (rank + 1).tolist(),
        strict=True,
    )
    return Enlarged(title, figure, csv_text(columns, rows), "text-surprisal")
