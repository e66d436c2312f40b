"""Enlarged panels: the numbers that went in are the numbers in the figure, in its hover and in its CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from playground.web import figures
from playground.web.figure_data import AttentionData, CacheData, NextTokenData, RopeData

TOKENS = ["Once", " upon", " <b>a</b>", "\n", " time", " &"]


def attention_data() -> AttentionData:
    scores = np.random.default_rng(0).random((6, 6)) * np.tri(6)
    pattern = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    return AttentionData(layer=2, head=5, pattern=pattern, tokens=TOKENS, row=4, key=1)


def turned(vector: np.ndarray, pairs: np.ndarray, angles: np.ndarray) -> np.ndarray:
    out = vector.copy()
    i, j = pairs.T
    out[i] = vector[i] * np.cos(angles) - vector[j] * np.sin(angles)
    out[j] = vector[j] * np.cos(angles) + vector[i] * np.sin(angles)
    return out


def rope_data() -> RopeData:
    """A head of 10 dimensions, 8 of them rotated."""
    q, k = np.random.default_rng(1).normal(size=(2, 10))
    pairs = np.array([[0, 4], [1, 5], [2, 6], [3, 7]])
    inv_freq = 100.0 ** -(np.arange(4) / 4)
    rotated = {"q_after": turned(q, pairs, inv_freq * 4), "k_after": turned(k, pairs, inv_freq)}
    labels = {"query_token": " time", "key_token": " upon", "scale": 10**-0.5, "positions": 6}
    return RopeData(1, 0, 4, 1, pairs=pairs, inv_freq=inv_freq, q_before=q, k_before=k, **rotated, **labels)


def next_token_data() -> NextTokenData:
    raw = np.array([0.5, 0.3, 0.15, 0.05])
    return NextTokenData(
        step=3,
        ids=[7, 9, 11, 13],
        tokens=TOKENS[:4],
        stages=["softmax", "top_k", "top_p"],
        settings=["", "3", "0.9"],
        probabilities=np.stack([raw, [0.53, 0.32, 0.15, 0], [0.62, 0.38, 0, 0]]),
        kept=[100, 3, 2],
        entropies=[1.1, 1.0, 0.7],
        drawn=1,
    )


def cache_data() -> CacheData:
    return CacheData.growing([(1024, 2048), (512, 512)], 8, position=3, reserved=8192, formula="2 × 8 = 16")


EVERY = {"attention": attention_data, "rope": rope_data, "next_token": next_token_data, "kv_cache": cache_data}


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("panel", list(EVERY))
def test_every_panel_becomes_plain_json_in_light_and_dark(panel: str, dark: bool) -> None:
    view = figures.build(panel, EVERY[panel](), dark=dark).as_json()
    assert set(view) == {"title", "figure", "csv", "filename"}
    assert json.loads(json.dumps(view)) == view
    background = view["figure"]["layout"]["paper_bgcolor"]
    assert background == (figures.DARK if dark else figures.LIGHT).paper


@pytest.mark.parametrize("panel", list(EVERY))
def test_every_visible_axis_says_what_it_measures(panel: str) -> None:
    layout = figures.build(panel, EVERY[panel]()).figure.to_dict()["layout"]
    axes = [axis for name, axis in layout.items() if name.startswith(("xaxis", "yaxis"))]
    assert axes
    assert all(axis["title"]["text"] for axis in axes if axis.get("visible", True))


@pytest.mark.parametrize("panel", list(EVERY))
def test_tokens_are_never_taken_for_markup(panel: str) -> None:
    assert "<b>a</b>" not in figures.build(panel, EVERY[panel]()).figure.to_json().replace("\\u003c", "<")


def test_attention_keeps_the_exact_values_and_leaves_the_future_empty() -> None:
    data = attention_data()
    view = figures.build("attention", data)
    shown = np.asarray(view.figure.data[0].z)
    inside = np.tri(6, dtype=bool)
    assert np.array_equal(shown[inside], data.pattern[inside])
    assert np.isnan(shown[~inside]).all()
    for row, values in zip(rows_of(view.csv)[1:], data.pattern, strict=True):
        assert [np.float32(v) for v in row[2:]] == list(values[: len(row) - 2])


def test_attention_frames_the_selected_row_and_key() -> None:
    row, key = figures.build("attention", attention_data()).figure.layout.shapes
    assert (row.y0, row.y1, row.x1) == (3.5, 4.5, 4.5)
    assert (key.x0, key.x1) == (0.5, 1.5)
    assert len(figures.build("attention", replace(attention_data(), key=None)).figure.layout.shapes) == 1


def test_equal_tokens_keep_places_of_their_own() -> None:
    data = replace(attention_data(), tokens=[" the"] * 6)
    assert len(set(figures.build("attention", data).figure.data[0].x)) == 6


def test_faint_attention_stays_visible() -> None:
    scale = figures.build("attention", attention_data()).figure.data[0].colorscale
    positions = [stop for stop, _ in scale]
    assert positions == sorted(positions)
    assert (positions[0], positions[-1]) == (0, 1)
    middle = min(range(len(positions)), key=lambda i: abs(positions[i] - 0.25))
    assert middle == len(positions) // 2  # p = 0.25 takes the middle colour


def test_rope_parts_add_up_to_the_score_of_before_and_after() -> None:
    data = rope_data()
    bars = [trace for trace in figures.build("rope", data).figure.data if trace.type == "bar"]
    total = sum(float(np.sum(trace.y)) for trace in bars)
    assert total == pytest.approx(data.score, abs=1e-9)
    assert data.score == pytest.approx(float(data.q_after @ data.k_after) / 10**0.5)
    assert [trace.name for trace in bars] == ["contribution", "not rotated"]


def test_rope_hands_carry_the_exact_components() -> None:
    data = rope_data()
    hands = {t.name: t for t in figures.build("rope", data).figure.data if t.type == "scatter" and t.name}
    assert set(hands) == {"q before", "q after", "k before", "k after"}
    shown = np.asarray(hands["k after"].customdata)[1::3, 1:]
    assert np.allclose(shown, data.k_after[data.pairs])


def test_rope_angles_are_position_times_frequency() -> None:
    data = rope_data()
    heat = next(trace for trace in figures.build("rope", data).figure.data if trace.type == "heatmap")
    assert np.allclose(heat.z, np.cos(np.outer(data.inv_freq, np.arange(6))), atol=1e-6)
    header, *rows = rows_of(figures.build("rope", data).csv)
    assert float(rows[1][header.index("angle of query")]) == pytest.approx(4 * data.inv_freq[1])


def test_removed_candidates_name_the_stage_that_removed_them() -> None:
    view = figures.build("next_token", next_token_data())
    removed = next(trace for trace in view.figure.data if trace.name == "removed")
    assert [(int(y), text.strip()) for y, text in zip(removed.y, removed.text, strict=True)] == [
        (2, "top_p"),
        (3, "top_k"),
    ]
    header, *rows = rows_of(view.csv)
    assert [row[header.index("removed by")] for row in rows] == ["", "", "top_p", "top_k"]


def test_the_drawn_token_alone_takes_the_accent() -> None:
    last = figures.build("next_token", next_token_data()).figure.data[2]
    assert [i for i, colour in enumerate(last.marker.color) if colour == figures.LIGHT.accent] == [1]


def test_cache_figure_adds_up_to_the_bytes_of_the_selected_position() -> None:
    data = cache_data()
    view = figures.build("kv_cache", data)
    assert view.title == "KV cache: 2 KiB at 4 positions"
    bands = [trace for trace in view.figure.data if trace.type == "scatter"]
    assert sum(float(band.y[-1]) for band in bands) == pytest.approx(4.0)  # KiB at 8 positions
    assert [int(v) for v in rows_of(view.csv)[8]] == [8, 1024, 512, 2048, 512]


def test_a_wrong_panel_or_record_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="choose one of attention, rope, next_token, kv_cache"):
        figures.build("mlp", attention_data())
    with pytest.raises(ValueError, match="drawn from RopeData, not from AttentionData"):
        figures.build("rope", attention_data())
    with pytest.raises(ValueError, match="pattern must have the shape"):
        replace(attention_data(), tokens=["one"])
