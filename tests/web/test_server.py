"""What the server does so that decoding has the processor to itself."""

from __future__ import annotations

import gc

import gradio as gr
import pytest

from playground.server import PROGRESS_REST, QUEUE_REST
from tests.web.conftest import run_async


@pytest.mark.usefixtures("served")
def test_what_is_there_at_the_start_is_never_searched_for_garbage() -> None:
    assert gc.get_freeze_count() > 100_000


def test_gradio_still_rests_between_looks_where_we_tell_it_how_long() -> None:
    """A newer Gradio that names these otherwise would look a thousand times a second again, and nobody would know."""

    async def own_rests() -> tuple[float, float]:
        with gr.Blocks() as blocks:
            pass
        queue = blocks.queue()._queue
        return queue.sleep_when_free, queue.progress_update_sleep_when_free

    own_queue_rest, own_progress_rest = run_async(own_rests())
    assert 0 < own_queue_rest < QUEUE_REST
    assert 0 < own_progress_rest < PROGRESS_REST
