"""The page's own events, called the way the browser calls them, and the names that people and tests find things by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from playground import Decoding
from playground.sessions import RefusedError
from playground.web import events, knobs, layout
from tests.frame_reader import steps_of
from tests.web.conftest import Served

VALUES: dict[str, Any] = {name: knobs.start(name) for name in knobs.SETTINGS} | {"max_new_tokens": 20, "seed": 7}


@pytest.fixture(scope="module")
def config(served: Served) -> dict[str, Any]:
    return httpx.get(f"{served.url}/config").json()


def function_of(config: dict[str, Any], name: str) -> int:
    return next(each["id"] for each in config["dependencies"] if each["api_name"] == name)


class Visitor:
    """One browser tab: a session hash, its heartbeat, and the event stream."""

    def __init__(self, served: Served, config: dict[str, Any], session: str) -> None:
        self.session, self._config = session, config
        self.client = httpx.Client(base_url=served.url, timeout=60)

    def join(self, name: str, *data: Any) -> None:
        body = {"data": list(data), "fn_index": function_of(self._config, name), "session_hash": self.session}
        self.client.post("/gradio_api/queue/join", json=body).raise_for_status()

    def stream(self) -> Iterator[dict[str, Any]]:
        with self.client.stream("GET", f"/gradio_api/queue/data?session_hash={self.session}") as told:
            for line in told.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def outputs(self) -> list[list[Any]]:
        """Values of (live,) as the browser puts them together from what is streamed."""
        values: list[list[Any]] = []
        for message in self.stream():
            if message["msg"] == "process_generating":
                data = message["output"]["data"]
                if message["output"].get("is_generating") and values:
                    data = [apply(old, edits) for old, edits in zip(values[-1], data, strict=True)]
                values.append(data)
            if message["msg"] == "process_completed":
                return values
        return values


def apply(old: Any, edits: list[Any]) -> Any:
    """Gradio's streamed differences, for the values of this page: texts and flat dictionaries."""
    if not isinstance(edits, list):
        return edits
    for action, path, value in edits:
        if path:
            old = {**old, path[0]: value}
            continue
        old = old + value if action == "append" else value
    return old


@pytest.fixture
def visitor(served: Served, config: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Visitor]:
    tab = Visitor(served, config, f"tab-{request.node.name}")
    yield tab
    tab.client.close()
    served.store.leave(tab.session)


def test_generate_streams_numbered_frames_to_the_end(visitor: Visitor) -> None:
    visitor.join("page_generate", ["Hello", *VALUES.values()])
    frames = [json.loads(live) for (live,) in visitor.outputs()]
    assert [frame["seq"] for frame in frames] == list(range(len(frames)))
    assert frames[0]["kind"] == "begin"
    assert frames[0]["decoding"]["seed"] == 7
    assert [frames[-1]["kind"], frames[-1]["state"]] == ["end", "done"]
    assert sum(len(steps_of(frame)) for frame in frames if frame["kind"] == "steps") == 20


@pytest.mark.parametrize(
    ("prompt", "changed", "sentence"),
    [
        ("", {}, "The prompt is empty"),
        ("x" * 100_000, {}, "shorten it"),
        ("x" * 1500, {}, "tokens"),
        (None, {}, "must be text"),
        (["x"], {}, "must be text"),
        ("Hello", {"temperature": None}, "temperature"),
        ("Hello", {"temperature": "1e999"}, "temperature"),
        ("Hello", {"temperature": 1e308}, "temperature"),
        ("Hello", {"top_k": 0.5}, "whole number"),
        ("Hello", {"top_p": [1]}, "top_p"),
        ("Hello", {"max_new_tokens": 100_000}, "ask for 400"),
        ("Hello", {"seed": None}, "seed"),
        ("Hello", {"top_p": 0}, "top_p is 0, which leaves nothing"),
        ("Hello", {"top_k": -3}, "top_k is -3"),
        ("Hello", {"temperature": 1e-9}, "temperature"),
        ("Hello", {"mirostat": 3}, "mirostat is 3"),
        ("Hello", {"banned_words": "x\n" * 1001}, "1,000"),
        ("Hello", {"banned_words": "cat", "forced_words": "cat"}, "take it out of one"),
        ("Hello", {"word_bias": "cat"}, "has no number"),
        ("Hello", {"stop_strings": "x" * 200}, "stop_strings"),
        ("Hello", {"order": ["heat"]}, "order must name stages"),
        ("Hello", {"stop_at_end": "yes"}, "stop_at_end"),
    ],
)
def test_bad_input_becomes_a_notice_and_leaves_the_rest_alone(
    visitor: Visitor, prompt: Any, changed: dict[str, Any], sentence: str
) -> None:
    visitor.join("page_generate", [prompt, *(VALUES | changed).values()])
    ((told,),) = visitor.outputs()
    assert set(told) == {"refused", "at"}
    assert sentence in told["refused"]
    assert "\n" not in told["refused"]


def test_stop_ends_the_run_and_says_so(visitor: Visitor) -> None:
    visitor.join("page_generate", ["Hello", *(VALUES | {"max_new_tokens": 240}).values()])
    told = visitor.stream()
    next(message for message in told if message["msg"] == "process_generating")
    visitor.join("page_stop")
    finished = [message for message in told if message["msg"] == "process_completed"]
    assert all(message["success"] for message in finished)
    last = max((text for m in finished for text in m["output"]["data"] if isinstance(text, str)), key=len)
    end = json.loads(last)
    assert end["kind"] == "end"
    assert end["state"] in ("stopped", "done")


def test_each_tab_has_its_own_runs(served: Served, config: dict[str, Any]) -> None:
    tabs = [Visitor(served, config, f"own-{name}") for name in "ab"]
    for tab in tabs:
        tab.join("page_generate", [f"I am {tab.session}", *VALUES.values()])
    for tab in tabs:
        frames = [json.loads(live) for (live,) in tab.outputs()]
        assert len({frame["run"] for frame in frames}) == 1
        (entry,) = served.store.runs(tab.session)
        assert entry.run.id == frames[0]["run"]
        assert entry.run.text.startswith(f"I am {tab.session}")
        tab.client.close()
        served.store.leave(tab.session)


def test_closing_the_tab_frees_its_memory(served: Served, config: dict[str, Any]) -> None:
    tab = Visitor(served, config, "closing")
    with tab.client.stream("GET", f"/gradio_api/heartbeat/{tab.session}") as heart:
        beats = heart.iter_lines()  # kept: the stream closes with it
        next(beats)
        tab.join("page_generate", ["Hello", *VALUES.values()])
        tab.outputs()
        assert served.store.used(tab.session) > 0
    tab.client.close()
    assert served.store.wait(lambda: served.store.used(tab.session) == 0, seconds=20)


def test_settings_are_read_in_the_order_of_the_widgets(loaded: Any) -> None:
    assert events.decoding_from(loaded, tuple(VALUES.values())) == Decoding(max_new_tokens=20, seed=7)


def test_typed_words_become_the_ids_of_the_loaded_model(loaded: Any) -> None:
    typed = {"banned_words": '"x"', "forced_words": '"yz"', "word_bias": '"q" -2', "stop_strings": "The end\n\\n\\n"}
    decoding = events.decoding_from(loaded, tuple({**VALUES, **typed}.values()))
    x, y, z, q = loaded.tokenizer("xyzq")["input_ids"]
    assert decoding.bad_words_ids == ((x,),)
    assert decoding.force_words_ids == ((y, z),)
    assert decoding.sequence_bias == (((q,), -2.0),)
    assert decoding.stop_strings == ("The end", "\n\n")


def test_slider_values_lose_the_dust_of_binary_fractions(loaded: Any) -> None:
    values = dict(VALUES, temperature=0.1 + 0.2)
    assert events.decoding_from(loaded, tuple(values.values())).temperature == 0.3


def test_numbers_that_are_none_are_refused(loaded: Any) -> None:
    for poison in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            events.decoding_from(loaded, (poison, *list(VALUES.values())[1:]))


def test_what_the_tokenizer_makes_of_words_is_told(visitor: Visitor) -> None:
    visitor.join("page_words", '"x"', "", '"yz" 2', "\\n", "")
    told = next(m for m in visitor.stream() if m["msg"] == "process_completed")["output"]["data"][0]
    assert told["notes"][0] == '"x" is "x".'
    assert "where it is 2 tokens" in told["notes"][1]
    assert len(told["settings"]["bad_words_ids"]) == 1
    assert told["settings"]["dry_sequence_breakers"] == ["\n"]
    assert events.words_read(None, {"banned_words": 3})["refused"]


def test_equal_refusals_differ() -> None:
    assert events.refusal("No.") != events.refusal("No.")


@pytest.mark.parametrize("asked", [None, [], "Hello", ["Hello"], {"prompt": "Hello"}])
def test_values_that_did_not_come_from_the_page_are_refused(visitor: Visitor, asked: Any) -> None:
    visitor.join("page_generate", asked)
    ((told,),) = visitor.outputs()
    assert told["refused"]


def test_the_widgets_carry_their_names(config: dict[str, Any]) -> None:
    by_type: dict[str, list[str]] = {}
    for part in config["components"]:
        if part["props"].get("visible") == "hidden":
            continue  # what this operator does not allow
        name = part["props"].get("label") or part["props"].get("value")
        by_type.setdefault(part["type"], []).append(name)
    names = ["Temperature", "Top-k", "Top-p", "Min-p", "Repetition penalty", "Max new tokens"]
    assert by_type["slider"][: len(names)] == names
    assert by_type["textbox"][0] == "Prompt"
    assert by_type["number"] == ["Seed"]
    assert {"Generate", "Stop"} <= set(by_type["button"])
    folded = [each for group in knobs.GROUPS for each in group.knobs]
    for kind in ("slider", "textbox", "radio", "checkbox"):
        assert set(by_type[kind]) <= {"Prompt", "Message", "System", *names, *(each.label for each in folded)}
    assert sum(len(by_type[kind]) for kind in ("slider", "textbox", "radio", "checkbox")) == 9 + len(folded)


def test_text_of_the_model_card_cannot_become_markup() -> None:
    facts = {"name": "<img src=x>", "device": "<b>", "dtype": "&", "parameters": 12_345_678}
    made = layout._header(facts)
    assert "<img" not in made
    assert "12.3 M parameters" in made


def test_refusals_are_sentences() -> None:
    assert issubclass(RefusedError, ValueError)
