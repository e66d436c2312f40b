"""The component as Gradio sees it: a constant place, and frames that pass as they are."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

from playground.web import live
from playground.web.live import Live

STATIC = live.STATIC
SCRIPTS = sorted(STATIC.glob("*.js"))


def test_the_template_is_constant_so_that_no_text_can_become_markup() -> None:
    config = Live().get_config()
    assert config["html_template"] == live.PLACE
    assert not re.search(r"\$\{|\{\{", config["html_template"] + config["css_template"])


def test_frames_with_tags_pass_unchanged_and_unremarked() -> None:
    frame = json.dumps({"v": 1, "tokens": [{"id": 1, "text": "<script>alert(1)</script>${1}{{x}}"}]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Live(frame).postprocess(frame) == frame


def test_server_functions_are_offered_to_the_browser() -> None:
    def focus(request: dict[str, int]) -> dict[str, int]:
        return request

    assert Live(server_functions=[focus]).get_config()["server_fns"] == ["focus"]


def test_no_stub_file_appears_beside_the_source() -> None:
    assert not Path(live.__file__).with_suffix(".pyi").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_never_write_markup(script: Path) -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", script.read_text("utf-8"))
