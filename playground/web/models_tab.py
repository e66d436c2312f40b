"""The Model tab and the menu of models: what the card says, in words, and where everything stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import gradio as gr

from playground.web.live import STATIC
from playground.web.loss_figure import loss_figure

NO_README = "This model came without a card of its own."
# Text reaches the page in the value, as JSON, and is set as text: a template would be evaluated.
ON_LOAD = (STATIC / "model_bootstrap.js").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Choices:
    """What visitors may choose from.

    Attributes:
        names: the menu.
        first: what is chosen to begin with.
        any_model: whether a path or a hub id may be typed.
        devices, dtypes: names as `models.load` takes them.
    """

    names: tuple[str, ...]
    first: str
    any_model: bool = False
    devices: tuple[str, ...] = ("auto",)
    dtypes: tuple[str, ...] = ("auto",)


@dataclass(frozen=True)
class Bar:
    """What stands over the page while a model loads, whichever tab is open."""

    status: gr.HTML
    cancel: gr.Button


@dataclass(frozen=True)
class ModelParts:
    """The parts of the page that choosing a model uses."""

    menu: gr.Dropdown
    device: gr.Dropdown
    dtype: gr.Dropdown
    place: gr.Textbox
    load: gr.Button
    bar: Bar
    view: gr.HTML
    readme: gr.Markdown
    curve: gr.Plot


def menu(choices: Choices) -> gr.Dropdown:
    """The menu of models; hidden where there is nothing to choose."""
    several = len(choices.names) > 1 or choices.any_model
    return gr.Dropdown(
        list(choices.names),
        value=choices.first,
        label="Model",
        elem_id="model-menu",
        visible=True if several else "hidden",
        filterable=len(choices.names) > 12,
    )


def bar(facts: Mapping[str, Any]) -> Bar:
    """How far loading has come, and a way out."""
    with gr.Row(elem_id="model-bar"):
        status = gr.HTML(
            shown(facts),
            html_template='<div class="model-status" role="status"></div>',
            js_on_load=ON_LOAD,
            apply_default_css=False,
            padding=False,
        )
        cancel = gr.Button("Cancel loading", elem_id="model-cancel", scale=0, min_width=120)
    return Bar(status, cancel)


def build(facts: Mapping[str, Any], choices: Choices, chosen: gr.Dropdown, above: Bar) -> ModelParts:
    """The tab, for a model's `Capability.as_dict()`."""
    card = facts["card"]
    with gr.Row(elem_id="model-page", equal_height=False):
        with gr.Column(scale=3, min_width=320):
            with gr.Row(elem_id="model-choice"):
                device = gr.Dropdown(list(choices.devices), value="auto", label="Device", min_width=96)
                dtype = gr.Dropdown(list(choices.dtypes), value="auto", label="Numbers", min_width=96)
                place = gr.Textbox(
                    label="Path or hub id",
                    placeholder="org/name@revision, or a directory on the server",
                    visible=True if choices.any_model else "hidden",
                    max_lines=1,
                    scale=3,
                    min_width=200,
                )
                load = gr.Button("Load", elem_id="model-load", scale=0, min_width=72)
            view = gr.HTML(
                shown(facts),
                html_template='<div class="model-card"></div>',
                js_on_load=ON_LOAD,
                apply_default_css=False,
                elem_id="facts",
                padding=False,
            )
        with gr.Column(scale=2, min_width=320):
            curve = gr.Plot(**plot_of(card), show_label=False, elem_id="loss-curve")
            readme = gr.Markdown(readme_of(card), elem_id="card")
    return ModelParts(chosen, device, dtype, place, load, above, view, readme, curve)


def readme_of(card: Mapping[str, Any]) -> str:
    """What the checkpoint says of itself."""
    return str(card.get("readme") or "") or NO_README


def plot_of(card: Mapping[str, Any]) -> dict[str, Any]:
    """The loss curve, where the checkpoint has one."""
    curve = card.get("loss_curve")
    return {"value": loss_figure(curve) if curve else None, "visible": bool(curve)}


# ---- the card in words


def shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The value of the card: what model_card.js draws."""
    card = facts["card"]
    return {
        "name": card["name"],
        "details": f"{count(card['parameters'])} parameters · {card['dtype']} on {card['device']}",
        "chat": bool(card["chat_template"]),
        "notes": list(card["notes"]),
        "panels": [dict(each) for each in facts["panels"]],
        "groups": [
            {"title": title, "rows": [[name, str(value)] for name, value in rows if value is not None]}
            for title, rows in (
                ("Shape", _shape(card)),
                ("Attention", _attention(card, facts)),
                ("Memory", _memory(card, facts)),
                ("Text", _text(card)),
            )
        ],
        "layers": [list(each) for each in layer_groups(facts["layers"])],
        "parts": [
            [name, f"{number:,}", number / max(card["parameters"], 1)]
            for name, number in card["parameter_parts"].items()
        ],
    }


Rows = Iterable[tuple[str, Any]]


def _shape(card: Mapping[str, Any]) -> Rows:
    experts, active = card["experts"], card["experts_per_token"]
    chosen = f", {active} for each token" if active else ""
    return (
        ("Architecture", card["architecture"]),
        ("Parameters", f"{card['parameters']:,}"),
        ("Layers", card["num_hidden_layers"]),
        ("Hidden size", f"{card['hidden_size']:,}"),
        ("Feed-forward size", f"{card['intermediate_size']:,}" if card["intermediate_size"] else None),
        ("Experts", f"{experts:,}{chosen}" if experts else None),
        ("Norm", card["norm"]),
        ("Activation", card["activation"]),
        ("Output head", "tied to the embedding" if card["tied_head"] else "its own matrix"),
    )


def _attention(card: Mapping[str, Any], facts: Mapping[str, Any]) -> Rows:
    attending = [each for each in facts["layers"] if each["heads"]]
    windows = sorted({each["window"] for each in attending if each["window"]})
    limited = sum(bool(each["window"]) for each in attending)
    return (
        ("Query heads", spread(each["heads"] for each in attending)),
        ("Key-value heads", spread(each["kv_heads"] for each in attending)),
        ("Head size", _head_sizes(attending)),
        ("Positions", card["position_scheme"]),
        ("Pairs that turn", {"halves": "i with i + half", "neighbours": "i with i + 1"}.get(facts["pairing"])),
        ("Window", f"{spread(windows)} positions in {limited} of {len(attending)} layers" if windows else "none"),
    )


def _head_sizes(attending: Sequence[Mapping[str, Any]]) -> str:
    keys, values = (spread(each[name] for each in attending) for name in ("head_dim", "value_dim"))
    return keys if keys == values else f"{keys} keys, {values} values (as cached)"


def _memory(card: Mapping[str, Any], facts: Mapping[str, Any]) -> Rows:
    longest = facts["longest"]
    return (
        ("Weights", f"{mebibytes(card['weights_bytes'])}, {card['dtype']}"),
        ("Device", " + ".join(card["devices"]) or card["device"]),
        ("One token", f"{facts['position_bytes'] / 1024:,.1f} KiB of keys, values and queries"),
        ("States", f"{mebibytes(facts['state_bytes'])}, however long the text" if facts["state_bytes"] else None),
        ("Free now", mebibytes(facts["free_bytes"])),
        ("Longest run", None if longest is None else f"{longest:,} tokens fit into that and into the context"),
    )


def _text(card: Mapping[str, Any]) -> Rows:
    context = card["context_length"]
    return (
        ("Vocabulary", f"{card['vocab_size']:,} tokens"),
        ("Context", "no limit known" if context is None else f"{context:,} tokens"),
        ("Unknown tokens", f"{card['unknown_rate']:.0%} of a sample of plain English"),
        ("Chat", "has a template" if card["chat_template"] else "has no template"),
    )


def layer_groups(layers: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    """Neighbouring layers that are alike, as (which, what)."""
    alike = groupby(layers, key=lambda each: {name: value for name, value in each.items() if name != "index"})
    for facts, group in alike:
        found = [each["index"] for each in group]
        which = f"{found[0]}" if len(found) == 1 else f"{found[0]}–{found[-1]}"
        yield which, _layer_words(facts)


def _layer_words(facts: Mapping[str, Any]) -> str:
    if not facts["heads"]:
        return str(facts["kind"])
    kept = f"{facts['kv_heads']} KV" if facts["kv_heads"] else "keys and values of an earlier layer"
    words = [f"{facts['heads']} query heads, {kept}"]
    words += [f"window {facts['window']:,}"] if facts["window"] else []
    words += [] if facts["rotates"] else ["no rotation"]
    return ", ".join(words)


def spread(values: Iterable[int]) -> str:
    """One number when all agree, else the smallest and the largest."""
    found = sorted(set(values))
    if not found:
        return "none"
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def mebibytes(number: int) -> str:
    """Bytes in the unit that suits them."""
    if number < 2**20:
        return f"{number / 2**10:,.1f} KiB"
    return f"{number / 2**30:,.2f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"


def count(number: int) -> str:
    """12,345,678 as 12.3 M."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
