"""The app as a user starts it, and a page of it in a real browser; any error on the page's console fails the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 60_000
"""Milliseconds until a page that does nothing counts as broken; machines that run tests may be slow."""


@pytest.fixture(scope="session")
def app_url() -> Iterator[str]:
    """Address of the app in a process of its own, with the shipped model, on a free loopback port."""
    environment = {**os.environ, "PLAYGROUND_PORT": "0", "PLAYGROUND_LOG_LEVEL": "warning", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "app.py", "--max-prompt-characters", "5000"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        url = next((line.removeprefix("Open ").strip() for line in said if line.startswith("Open ")), None)
        assert url is not None, "the app ended before it listened"
        assert httpx.get(f"{url}/readyz").status_code == 200
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)


class Playground:
    """One tab, and what the tests do in it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        page.on("response", lambda got: got.status >= 400 and self.complaints.append(f"{got.status} {got.url}"))

    def open(self, theme: str = "light") -> None:
        self.visit(f"{self.url}/?__theme={theme}")

    def visit(self, address: str) -> None:
        """Load a page in this tab; what the page that is left says of its broken streams does not count.

        Gradio's client complains whenever an event has not quite ended there, which a test cannot see from outside.
        """
        self.page.goto(address, wait_until="commit")
        self.complaints.clear()
        self.until("document.documentElement?.dataset.ready === 'true' && !!document.querySelector('#live')?.live")

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait until a JavaScript expression (or a function of `argument`) holds."""
        self.page.wait_for_function(condition, arg=argument, timeout=PATIENCE)

    def set(self, label: str, value: float) -> None:
        self.page.get_by_label(label, exact=True).fill(str(value))

    def type(self, prompt: str) -> None:
        self.page.get_by_label("Prompt").fill(prompt)

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def generate(self, prompt: str, tokens: int = 24, **settings: float) -> None:
        """Make a run and wait for its end."""
        self.type(prompt)
        self.set("Max new tokens", tokens)
        for label, value in settings.items():
            self.set(label.replace("_", "-"), value)
        before = self.live("run")
        self.press("Generate")
        self.until("before => document.querySelector('#live').dataset.run !== before", before)
        self.until("['done', 'stopped', 'error'].includes(document.querySelector('#live').dataset.state)")

    def live(self, name: str) -> str:
        """A data attribute of the component's root."""
        return self.page.locator("#live").get_attribute(f"data-{name}") or ""

    def state(self, path: str) -> Any:
        """A part of the component's own state, such as `drawn.attention.row`."""
        step_by_step = "path => path.split('.').reduce((at, name) => at[name], document.querySelector('#live').live)"
        return self.page.evaluate(step_by_step, path)

    def settled(self) -> None:
        """What is selected is drawn, exactly."""
        self.until(
            """() => { const { live } = document.querySelector('#live'); const { drawn, selection } = live;
              return !live.pending && drawn.attention.position === selection.position && drawn.attention.exact
                && drawn.attention.layer === selection.layer && drawn.attention.head === selection.head; }"""
        )

    def pixels(self, region: str) -> dict[str, int]:
        """What the canvases of a panel show: number of painted pixels, of colours, and a checksum."""
        return self.page.get_by_role("region", name=region, exact=True).evaluate(PIXELS)


PIXELS = """panel => {
  let painted = 0, sum = 0;
  const colours = new Set();
  for (const canvas of panel.querySelectorAll('canvas')) {
    if (!canvas.offsetParent || !canvas.width || !canvas.height) continue;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) {
      if (!data[i + 3]) continue;
      const colour = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
      painted++;
      colours.add(colour);
      sum = (Math.imul(sum, 31) + colour + i) | 0;
    }
  }
  return { painted, colours: colours.size, sum };
}"""

Open = Callable[..., Playground]


@pytest.fixture
def tab(browser: Any, app_url: str) -> Iterator[Open]:
    """Opens tabs, each a visitor of its own: `tab(width=1440, height=900, theme="light")`."""
    opened: list[tuple[Playground, Any]] = []

    def open_tab(width: int = 1440, height: int = 900, theme: str = "light", **options: Any) -> Playground:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        made = Playground(context.new_page(), app_url)
        opened.append((made, context))
        made.open(theme)
        return made

    yield open_tab
    complaints = [line for made, _ in opened for line in made.complaints]
    for _, context in opened:
        context.close()
    assert not complaints


@pytest.fixture
def playground(tab: Open) -> Playground:
    """The page at 1440x900 in light."""
    return tab()


def inspect(url: str, run: str, layer: int, head: int) -> Any:
    """The exact map of a head, asked from the endpoint for programs."""
    import json

    with httpx.Client(base_url=url, timeout=60) as client:
        joined = client.post("/gradio_api/call/inspect", json={"data": [run, layer, head, True]}).json()
        told = client.get(f"/gradio_api/call/inspect/{joined['event_id']}").text
    return json.loads(told.strip().split("data: ")[-1])[0]["map"]
