"""The web server: one FastAPI app with the page mounted in it, health checks, and an orderly start and end."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # both are read when gradio is imported:
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000")  # its statistics cost 10 ms an event
if find_spec("matplotlib") is None:
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # else gradio searches the disk for it at each message

import gradio as gr
import plotly
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from models import Loaded
from models.devices import DTYPES, available
from playground.capability import capability
from playground.model_store import AUTO, ModelStore, Shelf
from playground.sessions import Limits, Store, Worker
from playground.web import api, events, family, layout
from playground.web.doors import Doors
from playground.web.inspection import server_functions
from playground.web.models_tab import Choices
from playground.web.theme import theme

log = logging.getLogger(__name__)
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
QUEUE_REST, PROGRESS_REST = 0.02, 1.0
"""Seconds between Gradio's looks at its queue, and at progress bars, which we have none of. Its own 1 and 10 ms keep an
idle server busy and take time from decoding."""
FAREWELL_SECONDS = 5
"""How long a stopping server waits for answers that are under way."""


@dataclass(frozen=True)
class Settings:
    """How to serve.

    Attributes:
        host, port: where to listen.
        root_path: path below which a proxy publishes the app, if it does.
        frame_ancestors: which sites may show the page in a frame, as in a Content-Security-Policy.
        body_bytes: size of the largest request that is read.
        limits: what visitors may use.
        log_level: of the server's own log.
        model: the name that the first model has on the menu; that of its card if empty.
        shelf: which other models visitors may choose.
    """

    host: str = "127.0.0.1"
    port: int = 7860
    root_path: str = ""
    frame_ancestors: str = "'self'"
    body_bytes: int = 1_000_000
    limits: Limits = field(default_factory=Limits)
    log_level: str = "info"
    model: str = ""
    shelf: Shelf = field(default_factory=lambda: Shelf({}))


def create_app(loaded: Loaded, settings: Settings) -> FastAPI:
    """The web app for one model; `state.store` holds the runs. `ValueError` when the model cannot be watched."""
    store = Store(settings.limits)
    models = ModelStore(loaded, settings.model or loaded.card.name, settings.shelf, store)
    worker = Worker(store)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        store.close()
        worker.join(FAREWELL_SECONDS)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.store, app.state.models = store, models
    _health(app, worker, store)
    _static(app)
    _mount(app, page(models, store), settings)
    app.add_middleware(Doors, body_bytes=settings.body_bytes, frame_ancestors=settings.frame_ancestors)
    return app


def page(models: ModelStore, store: Store) -> gr.Blocks:
    """The page, wired to the stores. `ValueError` when the first model cannot be watched."""
    (first,) = models.loaded()
    choices = Choices(models.names, models.first.name, models.shelf.any_model, (AUTO, *available()), (AUTO, *DTYPES))
    built = layout.build(
        capability(first).as_dict(),
        store.limits.new_tokens,
        [*server_functions(store), *family.server_functions(store)],
        choices,
    )
    with built.blocks:
        events.wire(built, store, models)
        api.publish(store, models)
    built.blocks.queue(api_open=False, default_concurrency_limit=None, max_size=256)
    built.blocks._queue.sleep_when_free = QUEUE_REST
    built.blocks._queue.progress_update_sleep_when_free = PROGRESS_REST
    return built.blocks


def _mount(app: FastAPI, blocks: gr.Blocks, settings: Settings) -> None:
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=settings.host,
        server_port=settings.port,
        root_path=settings.root_path or None,
        show_error=False,
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        max_file_size=1,
        pwa=False,
        ssr_mode=False,
        mcp_server=False,
        app_kwargs={"docs_url": None, "redoc_url": None, "openapi_url": None},
        theme=theme(),
        head=layout.head(),
    )


def _health(app: FastAPI, worker: Worker, store: Store) -> None:
    @app.get("/livez")
    def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    def readyz() -> JSONResponse:
        ready = worker.is_alive() and not store.closed
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)


class _Assets(StaticFiles):
    """Our own files, and below them Gradio's, which live under the same path. Browsers ask whether they changed."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "no-cache"
        return response


def _static(app: FastAPI) -> None:
    @app.get("/static/plotly.min.js")
    def plotly_js(request: Request) -> Response:
        """Plotly as plotly.py brings it, so that figures and library fit; 5 MB, so it may be kept for a day."""
        return FileResponse(PLOTLY, media_type="text/javascript", headers={"cache-control": "public, max-age=86400"})

    app.mount("/static", _Assets(directory=layout.STATIC, packages=[("gradio", "templates/frontend/static")]))


class Server(uvicorn.Server):
    """uvicorn that says when it is ready, and ends runs before it waits for their readers."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self.app, self._started = app, started

    async def startup(self, sockets: Any = None) -> None:
        """Listen, then tell where."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is here now stays: looking through it for garbage would halt a run for a third of a second
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = self.config.host
            self._started(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: Any = None) -> None:
        """End all runs and the page's open connections, then stop listening."""
        self.app.state.store.close()
        for route in self.app.routes:
            stop = getattr(getattr(route, "app", None), "stop_event", None)
            if stop is not None:
                stop.set()  # heartbeats of open pages would hold the server back
        await super().shutdown(sockets)


def make_server(loaded: Loaded, settings: Settings, started: Callable[[str], None]) -> Server:
    """A server that is ready to `run()`; `started` is told the URL once requests are answered."""
    app = create_app(loaded, settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FAREWELL_SECONDS,
    )
    return Server(config, app, started)
