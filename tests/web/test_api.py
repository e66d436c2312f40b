"""The endpoints for programs, called the way a client calls them."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.frame_reader import unpack
from tests.web.conftest import Served


def test_generate_streams_the_text_and_every_step_once(served: Served) -> None:
    told = served.call("generate", "Hello", {"max_new_tokens": 30, "seed": 3})
    assert told[-1][0] == "complete"
    messages = [data[0] for event, data in told if event == "generating"]
    steps = [step for message in messages for step in message["steps"]]
    assert [step["index"] for step in steps] == list(range(30))
    assert messages[-1]["state"] == "done"
    assert messages[-1]["text"].startswith("Hello")
    assert messages[-1]["reason"]


def test_settings_may_be_text_or_missing(served: Served) -> None:
    as_text = served.call("generate", "Hello", '{"max_new_tokens": 5, "temperature": 0}')
    as_object = served.call("generate", "Hello", {"max_new_tokens": 5, "temperature": 0})
    assert as_text[-2][1][0]["text"] == as_object[-2][1][0]["text"]
    assert served.call("generate", "Hello", None)[-1][0] == "complete"


@pytest.mark.parametrize(
    ("prompt", "settings", "sentence"),
    [
        ("", None, "The prompt is empty"),
        ("x" * 100_000, None, "100,000 characters"),
        ("x" * 1000, None, "tokens"),
        (5, None, "must be text"),
        (None, None, "must be text"),
        ({"a": 1}, None, "must be text"),
        ("Hello", "{not json", "not JSON"),
        ("Hello", [1], "JSON object"),
        ("Hello", {"temperature": -1}, "temperature"),
        ("Hello", {"temperature": "hot"}, "temperature"),
        ("Hello", {"temperature": None}, "temperature"),
        ("Hello", '{"temperature": NaN}', "temperature"),
        ("Hello", '{"temperature": Infinity}', "temperature"),
        ("Hello", {"temperature": True}, "temperature"),
        ("Hello", {"top_k": 1.5}, "whole number"),
        ("Hello", {"top_p": 2}, "top_p"),
        ("Hello", {"seed": -1}, "seed"),
        ("Hello", {"seed": 2**70}, "seed"),
        ("Hello", {"max_new_tokens": 0}, "max_new_tokens"),
        ("Hello", {"max_new_tokens": 5000}, "ask for 400 or fewer"),
        ("Hello", {"colour": "red"}, "Unknown setting"),
        ("Hello", {"order": ["softmax"]}, "order"),
    ],
)
def test_bad_requests_get_one_sentence(served: Served, prompt: Any, settings: Any, sentence: str) -> None:
    event, data = served.call("generate", prompt, settings)[-1]
    assert event == "error"
    assert sentence in data["error"]
    assert "\n" not in data["error"]
    assert "Traceback" not in data["error"]


def test_lone_surrogates_are_refused_and_other_text_is_not(served: Served) -> None:
    body = b'{"data": ["half \\ud800 pair", null]}'
    answer = httpx.post(
        f"{served.url}/gradio_api/call/generate", content=body, headers={"content-type": "application/json"}
    )
    assert "Traceback" not in answer.text
    for prompt in ("🐉🐉", "שלום עולם", "\x07\x1b[31m", "a\u202eb", "\u0000x"):
        assert served.call("generate", prompt, {"max_new_tokens": 2})[-1][0] == "complete"


def test_inspect_gives_the_map_of_a_run(served: Served) -> None:
    run = served.call("generate", "Hello", {"max_new_tokens": 6})[-2][1][0]["run"]
    event, (found,) = served.call("inspect", run, 1, 3, False)[-1]
    assert event == "complete"
    assert found["shape"] == [10, 10]
    pattern = unpack(found["map"]).reshape(found["shape"])
    np.testing.assert_array_equal(pattern, served.store.find(run).run.attention(1, 3))
    np.testing.assert_allclose(pattern.sum(1), 1, atol=1e-5)
    listed = served.call("inspect", run, 1, 3, True)[-1][1][0]["map"]
    np.testing.assert_allclose(listed, pattern)


@pytest.mark.parametrize(
    ("run", "layer", "head"),
    [
        (None, 9, 0),
        (None, 0, 9),
        (None, -1, 0),
        (None, 0.5, 0),
        (None, "x", 0),
        (None, 0, None),
        ("unknown", 0, 0),
        (7, 0, 0),
    ],
)
def test_inspect_refuses_what_does_not_exist(served: Served, run: Any, layer: Any, head: Any) -> None:
    if run is None:
        run = served.call("generate", "Hello", {"max_new_tokens": 1})[-2][1][0]["run"]
    event, data = served.call("inspect", run, layer, head, False)[-1]
    assert event == "error"
    assert data["error"].endswith(".")


def test_models_names_what_there_is_and_no_folders(served: Served) -> None:
    (found,) = served.call("models")[-1][1]
    assert "storyteller" in found["shipped"]
    assert found["loaded"]["name"] == "tiny"
    assert "directory" not in found["loaded"]


def test_branch_goes_on_from_a_step_of_a_run_of_the_same_session(served: Served) -> None:
    session, settings = "brancher", {"max_new_tokens": 8, "temperature": 0}
    first = served.call("generate", "Hello", settings, session=session)[-2][1][0]
    told = served.call("branch", first["run"], 3, 7, None, settings, session=session)
    assert told[-1][0] == "complete"
    messages = [data[0] for event, data in told if event == "generating"]
    steps = [step for message in messages for step in message["steps"]]
    assert [step["index"] for step in steps] == list(range(12))
    assert steps[3]["id"] == 7
    assert messages[-1]["text"].startswith(first["text"][:8])
    edited = served.call("branch", first["run"], None, None, "Help", settings, session=session)[-2][1][0]
    assert edited["text"].startswith("Help")
    for run, step, token, text, caller in [
        (first["run"], 3, 7, None, "somebody-else"),
        ("unknown", 3, 7, None, session),
        (first["run"], 99, 7, None, session),
        (first["run"], 3, 9999, None, session),
        (first["run"], None, None, None, session),
    ]:
        event, sentence = served.call("branch", run, step, token, text, settings, session=caller)[-1]
        assert event == "error", (run, step)
        assert "Traceback" not in str(sentence)
