"""Plotly figures of the Architecture page: parts, FLOPs and cache of designs, and what experiments found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from models.accounting import ITEM_BYTES, decode_flops, kv_bytes, parameters, prefill_flops
from models.configuration import DecoderConfig
from playground.web.loss_figure import CHECKED, FONT, GRID, INK

PARTS = ("embedding", "positions", "attention", "feed_forward", "router", "norms", "head")
PART_COLOURS = ("#85828f", "#b8a14a", "#d55e00", "#0072b2", "#c2127d", "#6553ba", "#009e73")
POINTS = 7
DASHES = {"A": "solid", "B": "dash"}


def _styled(figure: go.Figure, title: str, x: str, y: str, height: int = 380) -> go.Figure:
    axis = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True}
    figure.update_xaxes(title=x, **axis)
    figure.update_yaxes(title=y, **axis)
    figure.update_layout(
        template="none",
        title={"text": title, "font": {"size": 14}, "x": 0, "xref": "paper"},
        font={"family": FONT, "size": 12, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 56, "r": 16, "t": 40 if title else 16, "b": 48},
        legend={
            "orientation": "h",
            "yref": "container",
            "y": 0.01,
            "yanchor": "bottom",
            "x": 0,
            "font": {"size": 11},
        },
        height=height,
        barmode="stack",
    )
    return figure


def of_designs(configs: Mapping[str, DecoderConfig], length: int, dtype: str) -> list[go.Figure]:
    """Parameter share by part, FLOPs against length, KV bytes against length; one or two designs, "A" and "B"."""
    return [_shares(configs), _flops(configs, length), _caches(configs, length, ITEM_BYTES[dtype])]


def _shares(configs: Mapping[str, DecoderConfig]) -> go.Figure:
    figure, marks = go.Figure(), list(configs)
    found = {mark: parameters(config) for mark, config in configs.items()}
    for part, colour in zip(PARTS, PART_COLOURS, strict=True):
        counts = [getattr(found[mark], part) for mark in marks]
        if any(counts):
            figure.add_bar(
                y=marks,
                x=[100 * count / found[mark].total for count, mark in zip(counts, marks, strict=True)],
                customdata=counts,
                orientation="h",
                name=part.replace("_", "-"),
                marker={"color": colour},
                hovertemplate="%{customdata:,} parameters, %{x:.1f} %<extra>" + part.replace("_", "-") + "</extra>",
            )
    styled = _styled(figure, "Parameters by part", "% of all", "")
    styled.update_yaxes(autorange="reversed")
    return styled


def _lengths(longest: int) -> list[int]:
    """A few lengths up to and including the longest, each twice the one before."""
    return sorted({max(1, longest >> power) for power in range(POINTS)})


def _flops(configs: Mapping[str, DecoderConfig], length: int) -> go.Figure:
    figure, lengths = go.Figure(), _lengths(4 * length)
    for mark, config in configs.items():
        prefill = [prefill_flops(config, each, logits=1) for each in lengths]
        lines = (
            ("prompt, products with weights", [each.total - each.scores for each in prefill], CHECKED[1]),
            ("prompt, T² part", [each.scores for each in prefill], CHECKED[0]),
            ("next token", [decode_flops(config, each).total for each in lengths], CHECKED[2]),
        )
        for name, values, colour in lines:
            figure.add_scatter(x=lengths, y=values, **_line(mark, name, colour, "%{y:.3s}FLOP"))
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log", exponentformat="SI")
    return _styled(figure, "FLOPs against length", "tokens", "FLOP")


def _line(mark: str, name: str, colour: str, value: str) -> dict[str, Any]:
    """How a curve of one design looks; `value` is the format of what the pointer finds."""
    return {
        "name": f"{mark}: {name}",
        "mode": "lines",
        "line": {"color": colour, "width": 1.75, "dash": DASHES[mark]},
        "hovertemplate": f"{value} at %{{x:,}} tokens<extra>{mark}: {name}</extra>",
    }


def _caches(configs: Mapping[str, DecoderConfig], length: int, item_bytes: int) -> go.Figure:
    figure, lengths = go.Figure(), [round(4 * length * part / 8) for part in range(9)]
    for mark, config in configs.items():
        query, shared, _ = config.heads
        kept = [kv_bytes(config, each, item_bytes, trimmed=True) / 2**20 for each in lengths]
        kinds = (
            (("as designed", kept, CHECKED[0]),)
            + (
                (("with a head each (MHA)", [each / shared * query for each in kept], CHECKED[1]),)
                if shared < query
                else ()
            )
            + ((("with one head (MQA)", [each / shared for each in kept], CHECKED[2]),) if shared > 1 else ())
        )
        for name, values, colour in kinds:
            figure.add_scatter(x=lengths, y=values, **_line(mark, name, colour, "%{y:,.1f} MiB"))
    return _styled(figure, "KV cache against length", "tokens", "MiB")


def of_experiment(name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """A section of the page: what was asked, what came out in a sentence, the figure, the command, the machine."""
    title, question, drawn = EXPERIMENTS[name]
    figure, sentence = drawn(record["result"])
    return {
        "name": name,
        "title": title,
        "question": question,
        "sentence": sentence,
        "figure": figure.to_dict(),
        "command": record["command"],
        "made": f"{record['machine']}; {record['seconds']:,} s. {record.get('note', '')}".strip(),
        "table": TABLES[name](record["result"]) if name in TABLES else None,
    }


def _position_table(result: Mapping[str, Any]) -> dict[str, Any]:
    lengths = [str(each) for each in result["lengths"]]
    rows = [
        [
            row["scheme"],
            *(f"{row['losses'][each]['all']:.3f}" for each in lengths),
            f"{row['losses'][lengths[-1]]['last']:.3f}",
        ]
        for row in result["rows"]
    ]
    caption = "Nats per byte by evaluated length; the last column counts only the last 64 positions"
    return {"caption": caption, "heads": ["scheme", *lengths, f"end of {lengths[-1]}"], "rows": rows}


def _head_table(result: Mapping[str, Any]) -> dict[str, Any]:
    keys = (
        "key_value_heads",
        "parameters",
        "intermediate_size",
        "loss",
        "kv_bytes_per_token",
        "milliseconds_per_token",
    )
    words = [
        "",
        "key-value heads",
        "parameters",
        "feed-forward size",
        "nats per byte",
        "cache bytes a token",
        "ms a token",
    ]
    rows = [[row["name"], *(f"{row[key]:,}" for key in keys)] for row in result["rows"]]
    return {"caption": f"At equal size; times at a context of {result['context']}", "heads": words, "rows": rows}


TABLES = {"positions": _position_table, "heads": _head_table}


def _lines(series: Mapping[str, tuple[list[Any], list[Any]]], **titles: Any) -> go.Figure:
    figure = go.Figure()
    for index, (name, (x, y)) in enumerate(series.items()):
        figure.add_scatter(
            x=x, y=y, name=name, mode="lines+markers", marker={"size": 4},
            line={"color": CHECKED[index % len(CHECKED)], "width": 1.75,
                  "dash": ("solid", "dash")[index // len(CHECKED) % 2]},
        )  # fmt: skip
    return _styled(figure, titles.pop("title", ""), titles.pop("x"), titles.pop("y"))


def _causality(result: Mapping[str, Any]) -> tuple[go.Figure, str]:
    moved = result["moved"]
    figure = go.Figure(go.Heatmap(
        z=[[math.log10(value) if value else None for value in row] for row in moved], customdata=moved,
        colorscale="Purples", hoverongaps=False, colorbar={"title": "log₁₀", "thickness": 10},
        hovertemplate="position %{y} moved by %{customdata:.3g} when token %{x} was replaced<extra></extra>",
    ))  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    return _styled(figure, "", "replaced token", "position"), (
        f"Replacing a token moved no output before it (largest change: {result['largest_change_before']:g}) and every "
        f"output from it on (smallest: {result['smallest_change_at_and_after']:.3g}). Empty cells are exactly 0."
    )


def _saturation(result: Mapping[str, Any]) -> tuple[go.Figure, str]:
    series = {}
    for key, words in (("plain", "q · k"), ("scaled", "q · k / √D")):
        rows = result[key]
        series[f"{words}: largest probability"] = ([row["size"] for row in rows], [row["largest"] for row in rows])
        series[f"{words}: gradient of softmax"] = ([row["size"] for row in rows], [row["jacobian"] for row in rows])
    figure = _lines(series, x="head size D", y="mean over queries")
    figure.update_xaxes(type="log")
    plain, scaled = result["plain"][-1], result["scaled"][-1]
    return figure, (
        f"At D = {plain['size']:,} plain scores deviate by {plain['deviation']:.1f}, one key of {result['keys']} takes "
        f"{plain['largest']:.0%} and the gradient is {plain['jacobian']:.2g}; divided by √D it stays "
        f"{scaled['jacobian']:.2g}, whatever D."
    )


def _stability(result: Mapping[str, Any]) -> tuple[go.Figure, str]:
    steps, series = list(range(1, result["layers"] + 1)), {}
    for width in ("5", "64"):
        for key, words in (("plain", "no norm"), ("normed", "normed")):
            series[f"{width} dimensions, {words}"] = (steps, result[width][key])
    wide = result["64"]
    return _lines(series, x="product", y="log₁₀ of the length"), (
        f"After {result['layers']} products with one random 64 × 64 matrix the vector is 10^{wide['plain'][-1]:.0f} "
        f"long: its largest eigenvalue is {wide['spectral_radius']:.2f}, and the length grows by that each time. "
        f"Normed before each product it stays at 10^{wide['normed'][-1]:.1f}."
    )


def _gradients(result: Mapping[str, Any]) -> tuple[go.Figure, str]:
    layers = list(range(result["layers"]))
    names = {key: f"{key}-norm" if key in ("pre", "post") else key for key in result if key != "layers"}
    series = {words: (layers, result[key]) for key, words in names.items()}
    pre, post = result["pre"], result["post"]
    return _lines(series, x="layer", y="length of the gradient"), (
        f"At the start of training the last layer's gradient is {post[-1] / post[0]:.1f} times the first's with "
        f"post-norm, {pre[-1] / pre[0]:.2f} times with pre-norm: post-norm needs a warm-up to survive its last layers."
    )


def _cost(result: Mapping[str, Any]) -> tuple[go.Figure, str]:
    lengths, series = result["lengths"], {}
    for way in ("naive", "blocked", "fused"):
        series[f"{way}: ms"] = (lengths, [row["milliseconds"] for row in result[way]])
    for way in ("naive", "blocked", "fused"):
        series[f"{way}: peak MiB"] = (lengths, [row["peak_mib"] for row in result[way]])
    figure = _lines(series, x="tokens", y="ms, MiB")
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    naive, fused = result["naive"][-1], result["fused"][-1]
    return figure, (
        f"At {lengths[-1]:,} tokens the whole matrix takes {naive['milliseconds']:,.0f} ms and {naive['peak_mib']:,.0f}"
        f" MiB beside its inputs, the fused kernel {fused['milliseconds']:,.0f} ms and {fused['peak_mib']:,.1f} MiB. "
        "Memory of the first grows with T², of the others with T; time of all with T²."
    )


def _positions(result: Mapping[str, Any]) -> tuple[go.Figure, str]:
    lengths, rows = result["lengths"], result["rows"]
    series = {row["scheme"]: (lengths, [row["losses"][str(each)]["all"] for each in lengths]) for row in rows}
    figure = _lines(series, x="evaluated length (bytes)", y="nats per byte")
    figure.update_xaxes(type="log", tickvals=lengths, ticktext=[str(each) for each in lengths])
    last = str(lengths[-1])
    best = min(rows, key=lambda row: row["losses"][last]["all"])
    worst = max(rows, key=lambda row: row["losses"][last]["all"])
    return figure, (
        f"Trained at {result['trained_length']} bytes for {result['steps']:,} steps ({result['shape']['parameters']:,} "
        f"parameters, far from converged). At {last} bytes {best['scheme']} does best "
        f"({best['losses'][last]['all']:.2f} nats per byte), {worst['scheme']} worst "
        f"({worst['losses'][last]['all']:.2f}). Scalings of RoPE were applied without further training."
    )


def _heads(result: Mapping[str, Any]) -> tuple[go.Figure, str]:
    rows = result["rows"]
    names = [f"{row['name']} ({row['key_value_heads']})" for row in rows]
    figure = go.Figure()
    for index, (key, words) in enumerate((
        ("loss", "nats per byte"), ("kv_bytes_per_token", "KiB of cache a token"),
        ("milliseconds_per_token", "ms a token"),
    )):  # fmt: skip
        values = [row[key] / (1024 if key.startswith("kv") else 1) for row in rows]
        figure.add_bar(x=names, y=values, name=words, marker={"color": CHECKED[index]})
    styled = _styled(figure, "", "key-value heads", "")
    styled.update_layout(barmode="group")
    parts = "; ".join(
        f"{row['name']}: {row['loss']:.3f} nats per byte, {row['kv_bytes_per_token']:,} bytes of cache a token, "
        f"{row['milliseconds_per_token']:.2f} ms a token at a context of {result['context']}"
        for row in rows
    )
    return styled, f"{parts}. All have {rows[0]['parameters']:,} parameters to within 1 %; {result['steps']:,} steps."


EXPERIMENTS: dict[str, tuple[str, str, Any]] = {
    "causality": ("Causality", "Does a later token change what comes before it?", _causality),
    "saturation": ("1 / √D", "What happens to softmax when scores are not divided by √D?", _saturation),
    "stability": ("100 layers", "What does depth do to a vector, with a norm and without?", _stability),
    "gradients": ("Pre- against post-norm", "Which layers feel the loss at the start of training?", _gradients),
    "attention-cost": ("Naive, blocked, fused", "What does attention cost by length, written three ways?", _cost),
    "positions": (
        "Positions beyond the trained length",
        "Which scheme reads on past what it was trained on?",
        _positions,
    ),
    "heads": ("Sharing keys and values", "What do fewer key-value heads cost, and save, at equal size?", _heads),
}
"""Of each experiment: its title, its question, and what draws it and says in a sentence what came out."""
