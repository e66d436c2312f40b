"""Which requests get in, checked against the running app: the doors of the page, and those that Gradio would open."""

from __future__ import annotations

import httpx
import pytest

from tests.web.conftest import Served

CLOSED_TO_READ = (
    "/gradio_api/file=http://example.com/x",
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/file/etc/passwd",
    "/gradio_api/proxy=http://example.com/",
    "/gradio_api/deep_link?session_hash=x",
    "/gradio_api/openapi.json",
    "/gradio_api/dev/reload",
    "/gradio_api/upload_progress?upload_id=x",
    "/gradio_api/custom_component/x/client/component/index.js",
    "/gradio_api/stream/a/b/1/playlist.m3u8",
    "/gradio_api/queue/status",
    "/gradio_api/token",
    "/gradio_api/runs",
    "/gradio_api/run-history/buckets",
    "/gradio_api/vibe-code",
    "/gradio_api/profiling/traces",
    "/monitoring",
    "/monitoring/summary",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/login",
    "/logout",
    "/static/../app.css",
    "/static/%2e%2e/live.py",
    "/static/..%2flive.py",
    "//etc/passwd",
    "/assets/../../../routes.py",
)
CLOSED_TO_WRITE = (
    "/gradio_api/upload",
    "/gradio_api/process_recording",
    "/gradio_api/run/generate",
    "/gradio_api/api/generate",
    "/gradio_api/stream/x",
    "/gradio_api/vibe-edit",
    "/gradio_api/undo-vibe-edit",
    "/gradio_api/run-history/connect",
    "/login",
)


@pytest.mark.parametrize("path", CLOSED_TO_READ)
def test_closed_for_reading(served: Served, path: str) -> None:
    assert httpx.get(served.url + path).status_code == 404


@pytest.mark.parametrize("path", CLOSED_TO_WRITE)
def test_closed_for_writing(served: Served, path: str) -> None:
    answer = httpx.post(served.url + path, json={"data": []})
    assert answer.status_code == 404
    assert answer.text == "There is nothing here."


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_not_used(served: Served, method: str) -> None:
    assert httpx.request(method, served.url + "/").status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/config", "/theme.css", "/livez", "/readyz", "/gradio_api/info", "/static/app.css"]
)
def test_open_for_reading(served: Served, path: str) -> None:
    assert httpx.get(served.url + path).status_code == 200


def test_only_the_three_endpoints_are_published(served: Served) -> None:
    info = httpx.get(f"{served.url}/gradio_api/info").json()
    assert sorted(info["named_endpoints"]) == ["/branch", "/generate", "/inspect", "/models"]
    assert info["unnamed_endpoints"] == {}


@pytest.mark.parametrize("path", ["/gradio_api/queue/join", "/gradio_api/component_server", "/gradio_api/cancel"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
def test_other_sites_may_not_ask(served: Served, path: str, origin: str) -> None:
    answer = httpx.post(served.url + path, json={}, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_other_sites_may_not_read(served: Served) -> None:
    answer = httpx.get(f"{served.url}/config", headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_own_page_may_ask(served: Served) -> None:
    answer = httpx.get(f"{served.url}/config", headers={"origin": served.url})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_the_own_page_may_ask_through_a_proxy_that_changes_the_host(served: Served) -> None:
    through = {"origin": "https://play.example", "x-forwarded-host": "play.example"}
    assert httpx.get(f"{served.url}/readyz", headers=through).status_code == 200


def test_large_bodies_are_refused_before_they_are_read(served: Served) -> None:
    answer = httpx.post(f"{served.url}/gradio_api/queue/join", content=b"x" * 1_000_001)
    assert answer.status_code == 413
    assert "1,000,000 bytes" in answer.text


def test_large_bodies_without_a_length_are_cut_off(served: Served) -> None:
    def pieces() -> object:
        for _ in range(20):
            yield b" " * 100_000

    try:
        answer = httpx.post(f"{served.url}/gradio_api/queue/join", content=pieces())
    except httpx.TransportError:
        return  # the connection was closed while we were still sending
    assert answer.status_code >= 400


@pytest.mark.parametrize("path", ["/", "/static/app.css", "/gradio_api/upload", "/readyz"])
def test_every_answer_carries_the_safe_headers(served: Served, path: str) -> None:
    headers = httpx.get(served.url + path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert "server" not in headers


def test_plotly_comes_from_its_own_package(served: Served) -> None:
    answer = httpx.get(f"{served.url}/static/plotly.min.js")
    assert answer.status_code == 200
    assert "javascript" in answer.headers["content-type"]
    assert b"plotly.js v" in answer.content[:300]


def test_own_files_are_asked_for_again_but_not_sent_again(served: Served) -> None:
    first = httpx.get(f"{served.url}/static/app.css")
    assert first.headers["cache-control"] == "no-cache"
    again = httpx.get(f"{served.url}/static/app.css", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"data": null}',
        b'{"data": {}, "component_id": {}, "session_hash": [], "fn_name": 5}',
        b'{"data": {}, "component_id": 99999, "session_hash": "x", "fn_name": "__init__"}',
    ],
)
def test_malformed_questions_get_no_traceback(served: Served, body: bytes) -> None:
    answer = httpx.post(
        f"{served.url}/gradio_api/component_server", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code >= 400
    assert "Traceback" not in answer.text
    assert "File " not in answer.text
