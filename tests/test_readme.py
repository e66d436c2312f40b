"""What the README promises holds: its Python runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "Once upon a time" in capsys.readouterr().out
    pattern = names["pattern"]
    assert isinstance(pattern, np.ndarray)
    assert pattern.shape[1:] == (names["positions"], names["positions"])
    assert np.allclose(pattern.sum(axis=-1), 1, atol=1e-5)
    assert float(np.sum(names["drawn_from"])) == pytest.approx(1, abs=1e-5)  # type: ignore[call-overload]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_every_link_leads_to_a_file(target: str) -> None:
    assert (ROOT / target).exists()


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_front_matter_names_the_installed_gradio() -> None:
    (version,) = re.findall(r"^sdk_version: (.+)$", README, re.MULTILINE)
    assert f"gradio=={version}\n" in (ROOT / "requirements.txt").read_text(encoding="utf-8")
