"""Options of the command line and of the environment."""

from __future__ import annotations

import pytest

import app
from playground.sessions import MIB, Limits


def told(arguments: list[str], **environment: str) -> object:
    return app.parser(environment).parse_args(arguments)


def test_without_options_only_this_machine_is_served() -> None:
    found = told([])
    assert [found.host, found.port, found.model] == ["127.0.0.1", 7860, "storyteller"]
    assert app.limits_of(found) == Limits()


def test_the_environment_sets_what_the_command_line_does_not() -> None:
    environment = {"PLAYGROUND_PORT": "7001", "PLAYGROUND_SESSION_MEGABYTES": "64", "PLAYGROUND_MODEL": "here"}
    found = told(["--port", "7002"], **environment)
    assert [found.port, found.model] == [7002, "here"]
    assert app.limits_of(found).session_bytes == 64 * MIB


def test_in_a_space_the_proxy_reaches_the_app_and_may_frame_it() -> None:
    found = told([], SPACE_ID="someone/something")
    assert found.host == "0.0.0.0"
    assert "https://huggingface.co" in found.frame_ancestors
    assert told([]).frame_ancestors == "'self'"


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--port", "70000"], {}),
        (["--port", "x"], {}),
        (["--max-new-tokens", "0"], {}),
        (["--session-megabytes", "-1"], {}),
        (["--log-level", "loud"], {}),
        ([], {"PLAYGROUND_PORT": "x"}),
        ([], {"PLAYGROUND_LOG_LEVEL": "loud"}),
    ],
)
def test_bad_values_end_the_start_with_a_sentence(
    arguments: list[str], environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        told(arguments, **environment)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "error:" in said


def test_every_option_names_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        told(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for name in (
        "HOST",
        "PORT",
        "MODEL",
        "DEVICE",
        "DTYPE",
        "THREADS",
        "MAX_NEW_TOKENS",
        "TOTAL_MEGABYTES",
        "ROOT_PATH",
    ):
        assert f"PLAYGROUND_{name}" in said


def test_visitors_choose_among_what_the_operator_names() -> None:
    found = told(["--models", "storyteller, org/name@v1", "--allow-any-model"])
    assert found.allow_any_model is True
    assert told([]).allow_any_model is False
    assert told([], PLAYGROUND_ALLOW_ANY_MODEL="1", PLAYGROUND_MODEL_DIR="here").model_dir == "here"
    with pytest.raises(SystemExit):
        told([], PLAYGROUND_ALLOW_ANY_MODEL="perhaps")


def test_a_folder_that_does_not_exist_ends_the_start_with_a_sentence() -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(["--model-dir", "/nowhere/at/all", "--port", "0"])
    assert "There is no folder '/nowhere/at/all'" in str(ended.value.code)


def test_a_checkpoint_that_cannot_be_loaded_ends_the_start_with_a_sentence(tmp_path: object) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(["--model", str(tmp_path), "--port", "0"])
    assert str(ended.value.code).startswith("app.py: ")
    assert "\n" not in str(ended.value.code)
