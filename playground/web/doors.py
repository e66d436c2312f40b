"""What may come in and what goes out with every answer: open routes, own origin only, small bodies, safe headers.

Gradio opens many routes of its own (uploads, a file proxy, monitoring, deep links, ...). Only those on `OPEN` answer;
whatever a newer version adds stays closed until somebody writes it down here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_NAME = r"[A-Za-z0-9_\-]+"
_READ = (
    r"/|/config/?|/(gradio_api/)?theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json|/livez|/readyz"
    r"|/(assets|static|svelte)/[A-Za-z0-9_\-./@+~]+"
    rf"|/gradio_api/(info/?|startup-events|app_id/?|user/?|login_check/?|queue/data|heartbeat/{_NAME})"
    rf"|/gradio_api/call/(v2/)?{_NAME}/{_NAME}"
)
_WRITE = rf"/gradio_api/(queue/join|cancel|reset/?|component_server/?|call/(v2/)?{_NAME}/?)"
OPEN = {"GET": re.compile(_READ), "HEAD": re.compile(_READ), "POST": re.compile(_WRITE)}
"""Paths that answer, by method."""


def headers(frame_ancestors: str) -> list[tuple[bytes, bytes]]:
    """Headers of every answer. Gradio's page needs inline scripts and eval; everything else comes from here only.

    Args:
        frame_ancestors: who may show the page in a frame, as in a Content-Security-Policy.
    """
    policy = (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
        f"object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors {frame_ancestors}"
    )
    named = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }
    return [(name.encode(), value.encode()) for name, value in named.items()]


class Doors:
    """ASGI middleware around the whole app."""

    def __init__(self, app: App, body_bytes: int, frame_ancestors: str) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._headers = headers(frame_ancestors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is refused, pass on the rest."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # there are no web sockets here
        send = _adding(self._headers, send)
        refused = self.refusal(scope)
        if refused is not None:
            await _answer(send, *refused)
            return
        # The request is our own page's or no browser's: without its origin nothing behind can reflect one.
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"origin"]
        await self._app(scope, _Measured(receive, self._body_bytes), send)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and sentence for a request that is not let in."""
        found = {name: value.decode("latin-1") for name, value in scope["headers"]}
        path, open_paths = scope["path"], OPEN.get(scope["method"])
        if open_paths is None:
            return 405, "This method is not used here."
        if ".." in path or not open_paths.fullmatch(path):
            return 404, "There is nothing here."
        if foreign(found):
            return 403, "Requests from other sites are not answered."
        length = found.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self._body_bytes:
            return 413, f"The request is too large: {self._body_bytes:,} bytes are read at most."
        return None


def foreign(found: MutableMapping[bytes, str]) -> bool:
    """Whether a browser sent this for a page of another site; `found`: the request's headers."""
    origin = found.get(b"origin")
    if origin is None:
        return False
    own = {found.get(b"host", ""), found.get(b"x-forwarded-host", "")} - {""}
    return urlsplit(origin).netloc not in own


class _Measured:
    """`receive` that ends the request once its body is larger than allowed, whatever its length header says."""

    def __init__(self, receive: Receive, allowed: int) -> None:
        self._receive, self._left = receive, allowed

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                return {"type": "http.disconnect"}
        return message


def _adding(extra: list[tuple[bytes, bytes]], send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", [])}
            more = [pair for pair in extra if pair[0] not in given]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return wrapped


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode()
    named = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": body})
