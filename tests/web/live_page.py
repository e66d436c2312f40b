"""A page with nothing but the live component, and a real run of a tiny model told to it message by message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from models import Loaded
from playground import Decoding, Run, frames, generate
from playground.waterfall import waterfall
from playground.web.layout import STATIC
from playground.web.live import PLACE

ORIGIN = "http://live.test"
PAGE = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>live</title>
<link rel="stylesheet" href="static/app.css"><link rel="stylesheet" href="static/live.css">
<style>body {{ margin: 0 }} #place {{ height: 800px }}</style></head>
<body><div id="place">{PLACE}</div></body></html>"""

MOUNT = """async () => {
  const { mount } = await import("/static/live.js");
  const names = ["focus", "rows", "keys", "angles", "details", "waterfall", "logits", "texts", "backfill", "figure",
    "tree", "replay", "compare"];
  const server = Object.fromEntries(names.map((name) => [name, (request) => window.ask(name, request)]));
  const props = { value: null };
  let seen = () => {};
  window.triggered = [];
  const trigger = (name, data) => window.triggered.push([name, data]);
  const watch = (name, callback) => { seen = callback; };
  await mount(document.getElementById("place"), { props, trigger, server, watch });
  window.tell = (value) => { props.value = value; seen(); };
  window.app = document.getElementById("live").live;
}"""

SETTLED = (
    "() => !app.pending && !app.wordsLater && app.store.inFlight.size === 0 "
    "&& (!app.store.rows || app.drawn.attention.exact)"
)


class Tape:
    """A finished run as the messages that told it, and the answers to what a browser asks about it."""

    def __init__(self, loaded: Loaded, prompt: str, decoding: Decoding, per_message: int = 1) -> None:
        self.run: Run = generate(loaded, prompt, decoding)  # type: ignore[arg-type]
        cursor = frames.Cursor()
        self.focus = frames.Focus()
        self.messages = [frames.begin(self.run, cursor)]
        while not self.run.finished:
            self.run.advance()
            if len(self.run.steps) - cursor.steps >= per_message or self.run.finished:
                self.messages += [told for told in [frames.delta(self.run, cursor, self.focus)] if told]
        self.messages.append(frames.end(self.run, cursor))
        self.asked: list[str] = []
        self.broken: set[str] = set()

    def answer(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """What the server function `name` says."""
        self.asked.append(name)
        if name in self.broken:
            return {"error": f"{name} is broken."}
        answer: dict[str, Any] = getattr(self, f"_{name}")(**{k: v for k, v in request.items() if k != "run"})
        return answer

    def _focus(self, layer: int, head: int) -> dict[str, Any]:
        return frames.focus(self.run, layer, head)

    def _rows(self, layer: int, head: int, first: int, last: int) -> dict[str, Any]:
        return frames.rows(self.run, layer, head, first, last)

    def _keys(self, layer: int, head: int, first: int, last: int) -> dict[str, Any]:
        return frames.keys(self.run, layer, head, first, last)

    def _angles(self, layer: int, first: int) -> dict[str, Any]:
        return frames.angles(self.run, layer, first)

    def _details(self, first: int, last: int) -> dict[str, Any]:
        return frames.details(self.run, first, last)

    def _waterfall(self, step: int) -> dict[str, Any]:
        return waterfall(self.run, step)

    def _logits(self, step: int) -> dict[str, Any]:
        return frames.logits(self.run, step)

    def _texts(self, ids: list[int]) -> dict[str, Any]:
        return frames.texts(self.run, ids)

    def _tree(self) -> dict[str, Any]:
        return {"tree": []}

    def _replay(self) -> dict[str, Any]:
        return {"frames": self.messages}

    def _backfill(self, first: int, last: int) -> dict[str, Any]:
        return {"frames": self.messages[first : last + 1]}


class LivePage:
    """The component in a browser."""

    def __init__(self, page: Any, tape: Tape) -> None:
        self.page, self.tape = page, tape

    def tell(self, *messages: Any) -> None:
        """Hand over messages the way the page does, one value after another as JSON, and let the page draw them."""
        for message in messages:
            self.page.evaluate("value => tell(value)", json.dumps(message))
        self.page.wait_for_function("() => !app.pending && !app.wordsLater")

    def tell_all(self) -> None:
        """The whole run."""
        self.tell(*self.tape.messages)
        self.settled()

    def settled(self) -> None:
        """Nothing is asked for or waits to be drawn."""
        self.page.wait_for_function(SETTLED, timeout=20_000)

    def get(self, expression: str, argument: Any = None) -> Any:
        """Value of a JavaScript expression; `app` is the component."""
        return self.page.evaluate(expression, argument)

    def pick(self, position: int) -> None:
        """Select a token."""
        self.get("position => app.selection.pick(position)", position)
        self.settled()


def _serve(route: Any) -> None:
    path = route.request.url.removeprefix(ORIGIN).split("?")[0]
    file = STATIC / path.removeprefix("/static/")
    kinds = {".js": "text/javascript", ".css": "text/css"}
    if path == "/":
        route.fulfill(body=PAGE, content_type="text/html")
    elif file.suffix in kinds and file.is_file():
        route.fulfill(path=file, content_type=kinds[file.suffix])
    else:
        route.fulfill(status=404, body="")


@contextmanager
def live_page(browser: Any, tape: Tape, width: int = 1120, height: int = 820, **options: Any) -> Iterator[LivePage]:
    """Opens the component; an exception on the page fails the test."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/*", _serve)
    page.expose_function("ask", tape.answer)
    page.goto(f"{ORIGIN}/")
    page.evaluate(MOUNT)
    try:
        yield LivePage(page, tape)
    finally:
        context.close()
    assert not errors


@contextmanager
def module_page(browser: Any) -> Iterator[Any]:
    """A page that can import the component's modules, to test them one by one."""
    context = browser.new_context()
    page = context.new_page()
    page.route("**/*", _serve)
    page.goto(f"{ORIGIN}/")
    yield page
    context.close()
