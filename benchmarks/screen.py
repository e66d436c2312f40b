"""The page itself in a headless Chromium: frames that reach the screen while a model writes, and their size."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from benchmarks import twins
from benchmarks.measure import Row, Setup, quartiles

ROOT = Path(__file__).resolve().parent.parent
PROMPT, NEW = 160, 192
"""Positions of a run: from 160 to 352, so that 256 lies in the middle."""
NOTE_FRAMES = """() => {
  const live = document.getElementById('live');
  window.seen = [];
  const note = () => {
    const { drawn, store } = live.live;
    const last = window.seen.at(-1);
    if (!last || last.frames !== drawn.frames)
      window.seen.push({ t: performance.now(), frames: drawn.frames, rows: store.rows, ms: drawn.drawMs });
    window.noting = requestAnimationFrame(note);
  };
  note();
}"""


def screen(setup: Setup) -> list[Row]:
    """Screen frames per second with all four panels drawn, and bytes per frame, around T = 256."""
    with _app(setup) as url, _page() as page:
        counter = _StreamBytes(page)
        page.goto(url)
        page.get_by_label("Prompt").wait_for()
        page.wait_for_function("() => document.getElementById('live')?.live")
        for name, value in (("Temperature", "0"), ("Max new tokens", str(NEW))):
            page.get_by_role("spinbutton", name=name).fill(value)
        page.get_by_label("Prompt").fill(twins.prompt(PROMPT))
        runs = [_one_run(page, counter) for _ in range(1 + 6 * setup.rounds)][1:]
    rates, sizes, drawing, speeds = zip(*runs, strict=True)
    what = f"screen frames with all panels, T = {PROMPT} to {PROMPT + NEW}"
    notes = {"draw_ms": statistics.median(drawing), "tokens_per_second": statistics.median(speeds)}
    return [
        Row("screen", what, *quartiles(rates), unit="frames/s", goal=20, notes=notes),
        Row("screen", "size of a frame as sent", *quartiles(sizes), unit="kB", goal=12, at_least=False),
    ]


@contextmanager
def _app(setup: Setup) -> Iterator[str]:
    """The real app as its own process, on a free port."""
    twins.ours("llama", setup)  # the checkpoint is there
    options = ["--port", "0", "--model", str(twins.SCRATCH / "llama" / "ours"), "--threads", str(setup.threads)]
    options += ["--device", setup.device, "--dtype", setup.dtype, "--log-level", "warning"]
    process = subprocess.Popen([sys.executable, "app.py", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("The app has no output to read its address from.")
        yield next(line.split()[-1] for line in process.stdout if line.startswith("Open "))
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def _page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        system = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(
            executable_path=None if own.exists() else system, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser.new_page(viewport={"width": 1440, "height": 900})
        browser.close()


class _StreamBytes:
    """Bytes of the page's event stream, as they come in."""

    def __init__(self, page: Page) -> None:
        self.total = 0
        self._streams: set[str] = set()
        session = page.context.new_cdp_session(page)
        session.on("Network.requestWillBeSent", self._sent)
        session.on("Network.dataReceived", self._received)
        session.send("Network.enable")

    def _sent(self, event: dict[str, Any]) -> None:
        if "/queue/data" in event["request"]["url"]:
            self._streams.add(event["requestId"])

    def _received(self, event: dict[str, Any]) -> None:
        if event["requestId"] in self._streams:
            self.total += event["dataLength"]


def _one_run(page: Page, counter: _StreamBytes) -> tuple[float, float, float, float]:
    """(frames/s, kB per frame, ms to draw one, tokens/s) of one press of Generate."""
    before, sent = page.evaluate("document.getElementById('live').live.store.received"), counter.total
    run = page.evaluate("document.getElementById('live').dataset.run")
    page.evaluate(NOTE_FRAMES)
    page.get_by_role("button", name="Generate").click()
    page.wait_for_function(
        "run => { const d = document.getElementById('live').dataset; return d.run !== run && d.state === 'done'; }",
        arg=run,
        timeout=120_000,
    )
    seen = page.evaluate("() => { cancelAnimationFrame(window.noting); return window.seen; }")
    after = page.evaluate("document.getElementById('live').live.store.received")
    drawn = [each for each in seen if PROMPT < each["rows"] < PROMPT + NEW - 1]
    gaps = [(b["t"] - a["t"]) / 1e3 for a, b in pairwise(drawn)]
    span = drawn[-1]["t"] - drawn[0]["t"]
    tokens = (drawn[-1]["rows"] - drawn[0]["rows"]) / span * 1e3
    size = (counter.total - sent) / max(after - before, 1) / 1e3
    return len(gaps) / sum(gaps), size, statistics.median(each["ms"] for each in drawn), tokens
