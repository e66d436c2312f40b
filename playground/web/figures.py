"""Plotly figures for what is drawn once and then read: the four panels enlarged.

Pure functions: plain records and numpy arrays in, a figure out; no model, no torch. Fill a panel's record and build:

    data = AttentionData(layer=2, head=5, pattern=run.attention(2, 5), tokens=texts, row=40, key=7)
    view = build("attention", data, dark=False)
    view.figure                     # plotly.graph_objects.Figure, e.g. for gr.Plot
    view.as_json()                  # {"title", "figure", "csv", "filename"}, plain JSON for the browser

Panels and their records: attention AttentionData, rope RopeData, next_token NextTokenData, kv_cache CacheData (in
figure_data.py, which documents the shapes).
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from playground.web.figure_data import AttentionData, CacheData, Floats, NextTokenData, RopeData

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True)
class Palette:
    """The page's colours, by meaning; `scale` runs from nothing to the largest magnitude."""

    paper: str
    ink: str
    muted: str
    grid: str
    accent: str
    removed: str
    scale: tuple[str, ...]
    q: str = "#D55E00"
    k: str = "#0072B2"
    v: str = "#009E73"


LIGHT = Palette(
    paper="#ffffff",
    ink="#1c1b22",
    muted="#5f5d6b",
    grid="#e6e4ee",
    accent="#c2127d",
    removed="#8d8b97",
    scale=("#fbfaf7", "#e3e0f3", "#bdb7e6", "#8f85d3", "#6553ba", "#412c99", "#22106b"),
)
DARK = Palette(
    paper="#15141b",
    ink="#eceaf4",
    muted="#a5a2b4",
    grid="#2f2d3a",
    accent="#ff6ac1",
    removed="#7d7a8a",
    scale=("#15141b", "#241f45", "#3d3380", "#6152b5", "#8f82d8", "#c0b8f0", "#f3f0ff"),
    q="#f0803c",
    k="#4aa8e0",
    v="#2fc49a",
)


@dataclass(frozen=True)
class Enlarged:
    """One panel made large: its figure, the same numbers as CSV text, and a name (no extension) for saving either."""

    title: str
    figure: go.Figure
    csv: str
    filename: str

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; the figure as Plotly's own JSON."""
        return {
            "title": self.title,
            "figure": json.loads(self.figure.to_json()),
            "csv": self.csv,
            "filename": self.filename,
        }


def build(panel: str, data: Any, dark: bool = False) -> Enlarged:
    """The enlarged view of a panel from its record; `ValueError` for an unknown panel or another panel's record."""
    if panel not in PANELS:
        raise ValueError(f"There is no panel {panel!r}: choose one of {', '.join(PANELS)}.")
    record, draw = PANELS[panel]
    if not isinstance(data, record):
        raise ValueError(f"The panel {panel} is drawn from {record.__name__}, not from {type(data).__name__}.")
    return draw(data, DARK if dark else LIGHT)


# What all figures share


def visible(text: str) -> str:
    """A token's text as a label: white space made visible, and nothing that Plotly takes for markup."""
    for char, mark in ((" ", "·"), ("\n", "⏎"), ("\t", "⇥"), ("\r", "␍")):
        text = text.replace(char, mark)
    return html.escape(text, quote=False) or "∅"


def _labels(tokens: Iterable[str], longest: int = 20) -> list[str]:
    """Axis labels, unique because they begin with the position."""
    short = (token if len(token) <= longest else token[: longest - 1] + "…" for token in tokens)
    return [f"{position} {visible(token)}" for position, token in enumerate(short)]


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV text; floats with the nine digits that give a float32 back exactly."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([f"{v:.9g}" if isinstance(v, float | np.floating) else v for v in row])
    return out.getvalue()


def _root_scale(palette: Palette, stops: int = 33) -> list[list[Any]]:
    """The palette's scale bent so that colour follows sqrt(p): faint attention stays visible, values stay exact."""
    colours = [np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)], float) for c in palette.scale]
    bent = []
    for stop in np.linspace(0, 1, stops):
        low = min(int(stop * (len(colours) - 1)), len(colours) - 2)
        mixed = colours[low] + (colours[low + 1] - colours[low]) * (stop * (len(colours) - 1) - low)
        bent.append([float(stop**2), f"rgb({','.join(str(round(c)) for c in mixed)})"])
    return bent


def _even_scale(palette: Palette) -> list[list[Any]]:
    return [[i / (len(palette.scale) - 1), colour] for i, colour in enumerate(palette.scale)]


def styled(figure: go.Figure, palette: Palette, title: str, height: int = 720) -> go.Figure:
    """The look that all figures share."""
    axis: dict[str, Any] = {"gridcolor": palette.grid, "linecolor": palette.grid, "zeroline": False}
    axis |= {"automargin": True, "title_standoff": 12}
    figure.update_layout(
        template="none",
        title={"text": title, "font": {"size": 15}, "x": 0, "xref": "paper", "xanchor": "left"},
        font={"family": FONT, "size": 12, "color": palette.ink},
        paper_bgcolor=palette.paper,
        plot_bgcolor=palette.paper,
        hoverlabel={"bgcolor": palette.paper, "bordercolor": palette.muted, "font": {"color": palette.ink}},
        margin={"l": 64, "r": 24, "t": 64, "b": 56},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0},
        height=height,
    )
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


# Attention


def attention(data: AttentionData, palette: Palette) -> Enlarged:
    """Heat map of one head: queries down, keys across, the selected row and key framed."""
    size = len(data.tokens)
    labels = _labels(data.tokens)
    shown = np.where(np.tri(size, dtype=bool), np.asarray(data.pattern, np.float32), np.float32("nan"))
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            x=labels,
            y=labels,
            zmin=0,
            zmax=1,
            colorscale=_root_scale(palette),
            colorbar=_inside_bar("probability"),
            hovertemplate="query %{y}<br>key %{x}<br>probability %{z:.7g}<extra></extra>",
            hoverongaps=False,
        )
    )
    _frame(figure, palette, {"y0": data.row - 0.5, "y1": data.row + 0.5, "x0": -0.5, "x1": data.row + 0.5})
    if data.key is not None:
        _frame(figure, palette, {"x0": data.key - 0.5, "x1": data.key + 0.5, "y0": data.key - 0.5, "y1": size - 0.5})
    title = f"Attention of layer {data.layer}, head {data.head}"
    styled(figure, palette, title, height=860)
    grid = {"showgrid": False, "type": "category", "tickfont": {"size": 11}}
    figure.update_xaxes(title_text="key: position and token attended to", constrain="domain", tickangle=-60, **grid)
    figure.update_yaxes(title_text="query: position and token", autorange="reversed", scaleanchor="x", **grid)
    rows = ([i, data.tokens[i], *shown[i, : i + 1].tolist()] for i in range(size))
    table = csv_text(["query", "token", *(f"key {i}" for i in range(size))], rows)
    return Enlarged(title, figure, table, f"attention-layer{data.layer}-head{data.head}")


def _inside_bar(name: str) -> dict[str, Any]:
    """A colour bar in the corner that a causal map leaves empty."""
    place = {"x": 1, "xanchor": "right", "y": 1, "yanchor": "top", "orientation": "h"}
    return {"title": {"text": name, "side": "top"}, "len": 0.32, "thickness": 10, "outlinewidth": 0, **place}


def _frame(figure: go.Figure, palette: Palette, corners: Mapping[str, float]) -> None:
    figure.add_shape(type="rect", line={"color": palette.accent, "width": 1.5}, **corners)


# RoPE


def rope(data: RopeData, palette: Palette) -> Enlarged:
    """A dial for every pair, the angles by position, and what each pair adds to the score."""
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{"rowspan": 2}, {}], [None, {}]],
        column_widths=[0.52, 0.48],
        horizontal_spacing=0.1,
        vertical_spacing=0.16,
        subplot_titles=(
            "q and k, before (thin) and after rotation",
            "Angle by position (cosine)",
            "Contribution of each pair to the score",
        ),
    )
    _dials(figure, data, palette)
    _angles(figure, data, palette)
    _contributions(figure, data, palette)
    title = (
        f"RoPE of layer {data.layer}, head {data.head}: query {data.query} “{visible(data.query_token)}”, "
        f"key {data.key} “{visible(data.key_token)}”, score {data.score:.4g}"
    )
    styled(figure, palette, title)
    figure.update_layout(legend={"y": -0.02, "yanchor": "top", "x": 0, "xanchor": "left"})
    figure.update_annotations(font_size=13)
    return Enlarged(title, figure, _rope_table(data), f"rope-layer{data.layer}-head{data.head}-query{data.query}")


def _dials(figure: go.Figure, data: RopeData, palette: Palette) -> None:
    """Pair p as a vector in its own plane, on a grid of circles; q and k each scaled to their longest pair."""
    count = len(data.pairs)
    columns = max(1, int(np.ceil(np.sqrt(count))))
    centres = np.stack([np.arange(count) % columns, -(np.arange(count) // columns)], axis=1) * 2.5
    turn = np.append(np.linspace(0, 2 * np.pi, 41), np.nan)
    circles = centres[:, None] + np.stack([np.cos(turn), np.sin(turn)], axis=1)
    circles = circles.reshape(-1, 2)
    quiet = {"hoverinfo": "skip", "showlegend": False, "line": {"color": palette.grid, "width": 1}}
    figure.add_trace(go.Scatter(x=circles[:, 0], y=circles[:, 1], mode="lines", **quiet), row=1, col=1)
    numbers = {"mode": "text", "text": np.arange(count), "textfont": {"color": palette.muted, "size": 11}}
    figure.add_trace(go.Scatter(x=centres[:, 0] - 0.95, y=centres[:, 1] + 0.95, **numbers, **quiet), row=1, col=1)
    for name, before, after, colour in (
        ("q", data.q_before, data.q_after, palette.q),
        ("k", data.k_before, data.k_after, palette.k),
    ):
        vectors = [np.asarray(values, float)[data.pairs] for values in (before, after)]
        longest = max(float(np.linalg.norm(vectors[1], axis=1).max(initial=0)), 1e-12)
        for moment, vector, width in (("before", vectors[0], 1), ("after", vectors[1], 2.5)):
            hands = _hands(centres, vector, longest, f"{name} {moment}", colour, width)
            figure.add_trace(hands, row=1, col=1)
    hidden = {"visible": False, "row": 1, "col": 1}
    figure.update_xaxes(**hidden)
    figure.update_yaxes(scaleanchor="x", **hidden)


def _hands(centres: Floats, vectors: Floats, longest: float, name: str, colour: str, width: float) -> go.Scatter:
    """Lines from each centre to the tip of its vector (P, 2); the exact components on hover at the tip."""
    gaps = np.full_like(centres, np.nan)
    points = np.stack([centres, centres + vectors / longest, gaps], axis=1).reshape(-1, 2)
    numbers = np.repeat(np.column_stack([np.arange(len(vectors)), vectors]), 3, axis=0)
    return go.Scatter(
        x=points[:, 0],
        y=points[:, 1],
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": width},
        marker={"size": np.tile([0, 2 + 2 * width, 0], len(vectors)), "color": colour},
        opacity=0.55 if width < 2 else 1.0,
        customdata=numbers,
        hovertemplate="pair %{customdata[0]:d}<br>(%{customdata[1]:.6g}, %{customdata[2]:.6g})"
        + f"<extra>{name}</extra>",
    )


def _angles(figure: go.Figure, data: RopeData, palette: Palette) -> None:
    angles = np.asarray(data.inv_freq, float)[:, None] * np.arange(data.positions)  # (P, T) radians
    figure.add_trace(
        go.Heatmap(
            z=np.cos(angles).astype(np.float32),
            customdata=angles.astype(np.float32),
            zmin=-1,
            zmax=1,
            colorscale=_even_scale(palette),
            colorbar={"title": {"text": "cos"}, "thickness": 10, "len": 0.44, "y": 0.79, "outlinewidth": 0},
            hovertemplate="position %{x}<br>pair %{y}<br>angle %{customdata:.6g} rad<br>cos %{z:.5f}<extra></extra>",
        ),
        row=1,
        col=2,
    )
    for position, colour, name in ((data.query, palette.q, "query"), (data.key, palette.k, "key")):
        line = {"color": colour, "width": 2}
        note = {"annotation_text": name, "annotation_bgcolor": palette.paper}
        figure.add_vline(x=position, line=line, row=1, col=2, **note)
    figure.update_xaxes(title_text="position", row=1, col=2)
    figure.update_yaxes(title_text="pair", autorange="reversed", row=1, col=2)


def _contributions(figure: go.Figure, data: RopeData, palette: Palette) -> None:
    parts = data.contributions
    figure.add_trace(
        go.Bar(
            x=np.arange(len(parts)),
            y=parts,
            name="contribution",
            showlegend=False,
            marker_color=palette.scale[4],
            hovertemplate="pair %{x}<br>adds %{y:.6g}<extra></extra>",
        ),
        row=2,
        col=2,
    )
    rest = data.score - float(parts.sum())
    if 2 * len(parts) < len(data.q_after):
        bar = go.Bar(x=[len(parts) + 1], y=[rest], name="not rotated", marker_color=palette.removed)
        figure.add_trace(bar, row=2, col=2)
    figure.update_xaxes(title_text="pair (high to low frequency)", row=2, col=2)
    figure.update_yaxes(title_text="part of the score", row=2, col=2)


def _rope_table(data: RopeData) -> str:
    header = ["pair", "i", "j", "radians per position", "angle of query", "angle of key"]
    header += [f"{name} {moment} {axis}" for name in "qk" for moment in ("before", "after") for axis in "ij"]
    vectors = [np.asarray(v, float)[data.pairs] for v in (data.q_before, data.q_after, data.k_before, data.k_after)]
    numbers = np.concatenate(vectors, axis=1)
    rows = (
        [p, i, j, float(f), float(f * data.query), float(f * data.key), *numbers[p].tolist(), float(c)]
        for p, ((i, j), f, c) in enumerate(zip(data.pairs.tolist(), data.inv_freq, data.contributions, strict=True))
    )
    return csv_text([*header, "part of the score"], rows)


# Next token


def next_token(data: NextTokenData, palette: Palette) -> Enlarged:
    """Grouped bars: each candidate's probability after each stage; what was removed is marked with the stage's name."""
    count, last = len(data.ids), len(data.stages) - 1
    probabilities = np.asarray(data.probabilities, float)
    figure = go.Figure()
    for index, stage in enumerate(data.stages):
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=np.arange(count),
                x=probabilities[index],
                name=_stage_name(data, index),
                marker_color=_stage_colours(data, palette, index),
                customdata=[[visible(t), i] for t, i in zip(data.tokens, data.ids, strict=True)],
                hovertemplate="%{customdata[0]} (id %{customdata[1]})<br>%{x:.7g}" + f"<extra>{stage}</extra>",
            )
        )
    _mark_removed(figure, data, palette)
    drawn = "" if data.drawn is None else f": “{visible(data.tokens[data.drawn])}” was drawn"
    title = f"Next token, step {data.step}{drawn}"
    styled(figure, palette, title, height=max(420, 140 + count * (14 + 5 * last)))
    figure.update_layout(barmode="group", bargap=0.25, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text="probability", tickformat=".3~%", rangemode="tozero")
    ticks = {"tickvals": np.arange(count), "ticktext": _candidate_labels(data, palette)}
    figure.update_yaxes(title_text="candidate, most likely first", autorange="reversed", showgrid=False, **ticks)
    return Enlarged(title, figure, _next_token_table(data), f"next-token-step{data.step}")


def _stage_name(data: NextTokenData, index: int) -> str:
    setting = f" {data.settings[index]}" if data.settings[index] else ""
    return f"{data.stages[index]}{setting} ({data.kept[index]:,} kept, {data.entropies[index]:.3g} nats)"


def _stage_colours(data: NextTokenData, palette: Palette, index: int) -> list[str]:
    """Later stages are stronger on the one scale; the bar that the token was drawn from takes the accent."""
    last = len(data.stages) - 1
    strength = 2 + round(3 * index / max(last, 1))
    return [
        palette.accent if index == last and i == data.drawn else palette.scale[strength] for i in range(len(data.ids))
    ]


def _candidate_labels(data: NextTokenData, palette: Palette) -> list[str]:
    labels = [visible(token) for token in data.tokens]
    for i, label in enumerate(labels):
        if i == data.drawn:
            labels[i] = f'<span style="color:{palette.accent}"><b>{label}</b></span>'
        elif data.removed_by(i):
            labels[i] = f'<span style="color:{palette.removed}"><s>{label}</s></span>'
    return labels


def _mark_removed(figure: go.Figure, data: NextTokenData, palette: Palette) -> None:
    """A grey cross and the stage's name beside every candidate that did not survive."""
    gone = [i for i in range(len(data.ids)) if data.removed_by(i)]
    if not gone:
        return
    figure.add_trace(
        go.Scatter(
            x=np.asarray(data.probabilities, float)[:, gone].max(axis=0),
            y=gone,
            mode="markers+text",
            name="removed",
            marker={"symbol": "x", "size": 7, "color": palette.removed},
            text=[f"  {data.removed_by(i)}" for i in gone],
            textposition="middle right",
            textfont={"color": palette.muted, "size": 11},
            cliponaxis=False,
            hovertemplate="removed by %{text}<extra></extra>",
        )
    )


def _next_token_table(data: NextTokenData) -> str:
    columns = np.asarray(data.probabilities, float).T.tolist()
    rows = (
        [i, data.ids[i], data.tokens[i], *columns[i], data.removed_by(i) or "", int(i == data.drawn)]
        for i in range(len(data.ids))
    )
    return csv_text(["rank", "id", "token", *data.stages, "removed by", "drawn"], rows)


# KV cache


def kv_cache(data: CacheData, palette: Palette) -> Enlarged:
    """Bytes by position, keys and values stacked layer on layer, and each layer's share at the selected position."""
    keys, values = np.asarray(data.k_bytes, float), np.asarray(data.v_bytes, float)
    layers, positions = keys.shape
    total = float(keys[:, data.position].sum() + values[:, data.position].sum())
    unit, size = _byte_unit(max(float((keys + values).sum(axis=0).max(initial=0)), 1))
    figure = make_subplots(
        rows=1,
        cols=2,
        column_widths=[0.66, 0.34],
        subplot_titles=("All layers, by stored positions", f"Each layer at {data.position + 1} positions"),
    )
    for name, held, colour in (("keys", keys, palette.k), ("values", values, palette.v)):
        for layer in range(layers):
            figure.add_trace(_band(name, layer, held[layer] / size, unit, colour, palette), row=1, col=1)
        figure.add_trace(_layer_bars(name, held[:, data.position] / size, unit, colour), row=1, col=2)
    figure.add_vline(x=data.position + 1, line={"color": palette.accent, "width": 2}, row=1, col=1)
    title = f"KV cache: {_bytes(total)} at {data.position + 1} positions"
    styled(figure, palette, _with_notes(title, data), height=560)
    figure.update_layout(barmode="stack", margin={"t": 112}, legend={"y": 1.1})
    figure.update_annotations(font_size=13)
    figure.update_xaxes(title_text="stored positions", range=[1, max(positions, 2)], row=1, col=1)
    figure.update_yaxes(title_text=unit, rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="layer", dtick=max(1, layers // 12), row=1, col=2)
    figure.update_yaxes(title_text=unit, rangemode="tozero", row=1, col=2)
    return Enlarged(title, figure, _cache_table(data), "kv-cache")


def _with_notes(title: str, data: CacheData) -> str:
    """The title, and under it the formula and what is reserved."""
    notes = [note for note in (data.formula, f"{_bytes(data.reserved)} reserved" if data.reserved else "") if note]
    return f"{title}<br><sup>{html.escape(' · '.join(notes), quote=False)}</sup>" if notes else title


def _band(name: str, layer: int, held: Floats, unit: str, colour: str, palette: Palette) -> go.Scatter:
    return go.Scatter(
        x=np.arange(1, len(held) + 1),
        y=held,
        stackgroup="bytes",
        name=name,
        legendgroup=name,
        showlegend=layer == 0,
        fillcolor=colour,
        line={"width": 0.5, "color": palette.paper},
        hovertemplate=f"layer {layer}<br>%{{x}} positions<br>%{{y:.6g}} {unit}<extra>{name}</extra>",
    )


def _layer_bars(name: str, held: Floats, unit: str, colour: str) -> go.Bar:
    return go.Bar(
        x=np.arange(len(held)),
        y=held,
        name=name,
        legendgroup=name,
        showlegend=False,
        marker_color=colour,
        hovertemplate=f"layer %{{x}}<br>%{{y:.6g}} {unit}<extra>{name}</extra>",
    )


def _byte_unit(largest: float) -> tuple[str, float]:
    for unit, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if largest >= size:
            return unit, size
    return "bytes", 1.0


def _bytes(count: float) -> str:
    unit, size = _byte_unit(count)
    return f"{count / size:.4g} {unit}"


def _cache_table(data: CacheData) -> str:
    layers = range(len(data.k_bytes))
    header = [f"{name} bytes of layer {layer}" for name in ("key", "value") for layer in layers]
    columns = np.concatenate([np.asarray(data.k_bytes), np.asarray(data.v_bytes)]).round().astype(np.int64).T
    return csv_text(["positions", *header], ([t + 1, *row] for t, row in enumerate(columns.tolist())))


PANELS: Mapping[str, tuple[type, Callable[[Any, Palette], Enlarged]]] = {
    "attention": (AttentionData, attention),
    "rope": (RopeData, rope),
    "next_token": (NextTokenData, next_token),
    "kv_cache": (CacheData, kv_cache),
}
