"""What every test shares: determinism, no way out to the network, and a browser where there is one."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read when the libraries are imported, so set before any of them is.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in app.py

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands in tests/browser, and run it last: what is quick to fail comes first."""
    for item in items:
        if ROOT / "tests" / "browser" in item.path.parents:
            item.add_marker(pytest.mark.browser)
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _the_usual_layout() -> Iterator[None]:
    """How weights lie must not depend on how busy the machine is: sums in another order differ in their last bits."""
    from models import layout

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "_seconds", lambda matrices, vector: 1.0)
        yield


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that need the network are wrong tests: only this machine may be called."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            raise OSError(f"tests must not call {address[0]}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of training texts and foreign checkpoints beside the repository; skips where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the folder ../shared (texts and checkpoints), which is not here")
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium (playwright.sync_api.Browser) for the whole run: Playwright's own, else the system's."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        path = own if Path(own).exists() else shutil.which("chromium") or shutil.which("google-chrome")
        if path is None:
            pytest.skip("needs Chromium: install it with scripts/ensure_browser.sh")
        instance = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_ARGUMENTS))
        yield instance
        instance.close()
