"""Choosing a model on the page: the menu, the card, what the panels say of another model, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, Lfm2Config, Lfm2ForCausalLM, LlamaConfig, LlamaForCausalLM

from models.data import train_tokenizer
from tests.browser.conftest import ROOT, Playground

SHAPE = {"vocab_size": 300, "hidden_size": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without rotation, one that is only partly attention, and a broken one."""
    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("models")
    hybrid = Lfm2Config(
        **SHAPE, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        layer_types=["conv", "full_attention"], max_position_embeddings=128,
    )  # fmt: skip
    BloomForCausalLM(BloomConfig(**SHAPE, n_layer=2, n_head=6)).save_pretrained(made / "without-rotation")
    Lfm2ForCausalLM(hybrid).save_pretrained(made / "hybrid")
    for each in ("without-rotation", "hybrid"):
        train_tokenizer(["a few words of no great length"], 270, 64).save_pretrained(made / each)
    llama = LlamaConfig(
        **SHAPE, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=128
    )
    LlamaForCausalLM(llama).save_pretrained(made / "talker")
    tokenizer = train_tokenizer(["a few words of no great length"], 270, 64)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    tokenizer.save_pretrained(made / "talker")
    (made / "broken").mkdir()
    (made / "broken" / "config.json").write_text('{"model_type": "llama", "vocab_size": 20000000}')
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    environment = {
        **os.environ, "PLAYGROUND_PORT": "0", "PLAYGROUND_LOG_LEVEL": "critical", "PYTHONUNBUFFERED": "1",
        "PLAYGROUND_MODEL_DIR": str(folder), "PLAYGROUND_ALLOW_ANY_MODEL": "1",
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        found = next((line.removeprefix("Open ").strip() for line in said if line.startswith("Open ")), None)
        assert found is not None, "the app ended before it listened"
        yield found
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Callable[..., Playground]]:
    contexts: list[tuple[Playground, Any]] = []

    def open_page(width: int = 1440, height: int = 900, theme: str = "light") -> Playground:
        context = browser.new_context(viewport={"width": width, "height": height})
        made = Playground(context.new_page(), url)
        contexts.append((made, context))
        made.open(theme)
        return made

    yield open_page
    for _, context in contexts:
        context.close()
    assert not [line for made, _ in contexts for line in made.complaints]


def choose(playground: Playground, name: str) -> None:
    playground.page.get_by_label("Model", exact=True).click()
    playground.page.get_by_role("option", name=name, exact=True).click()


def chosen(playground: Playground, name: str) -> None:
    playground.until("name => document.body.dataset.model === name", name)


def card(playground: Playground) -> str:
    playground.page.get_by_role("tab", name="Model").click()
    region = playground.page.get_by_role("region", name="Model card")
    region.wait_for()
    return region.inner_text()


def test_another_model_changes_the_card_and_the_panels(page: Callable[..., Playground]) -> None:
    playground = page()
    playground.generate("Once upon a time", tokens=8)
    assert "rotary" in playground.state("view.begin.model.position_scheme")
    choose(playground, "without-rotation")
    chosen(playground, "without-rotation")
    assert "without-rotation" in playground.page.locator("#masthead").inner_text()
    playground.generate("a few words", tokens=8)
    playground.settled()
    assert playground.state("view.begin.model.name") == "without-rotation"
    rope = playground.page.get_by_role("region", name="RoPE", exact=True).inner_text()
    assert "its position scheme: ALiBi (linear biases on the scores)" in rope
    told = card(playground)
    assert "BloomForCausalLM" in told
    assert "queries cannot be had" in told
    assert "This model does not rotate queries and keys" in told


def test_layers_that_are_no_attention_are_named(page: Callable[..., Playground]) -> None:
    playground = page()
    choose(playground, "hybrid")
    chosen(playground, "hybrid")
    playground.generate("a few words", tokens=8)
    playground.settled()
    assert playground.state("selection.layer") == 1
    assert "1 of 2 layers have attention; the others are convolution" in card(playground)


def test_a_model_that_cannot_be_used_is_refused_in_one_sentence_and_the_old_one_stays(
    page: Callable[..., Playground],
) -> None:
    playground = page()
    choose(playground, "broken")
    alert = playground.page.get_by_role("alert").filter(has_text="impossible vocab_size")
    alert.wait_for()
    menu = playground.page.get_by_label("Model", exact=True)
    playground.until("menu => menu.value === 'storyteller'", menu.element_handle())
    playground.generate("Once upon a time", tokens=4)
    assert playground.state("view.begin.model.name") == "storyteller"


def test_a_path_can_be_typed_where_the_operator_allows_it(page: Callable[..., Playground], folder: Path) -> None:
    playground = page()
    playground.page.get_by_role("tab", name="Model").click()
    playground.page.get_by_label("Path or hub id").fill(str(folder / "hybrid"))
    playground.press("Load")
    chosen(playground, "hybrid")
    playground.page.get_by_label("Path or hub id").fill(str(folder / "nowhere"))
    playground.press("Load")
    playground.page.locator(".model-failed").filter(has_text="There is no directory").wait_for()
    assert "Lfm2ForCausalLM" in card(playground)


def test_two_visitors_keep_their_own_models(page: Callable[..., Playground]) -> None:
    first, second = page(), page()
    choose(first, "hybrid")
    chosen(first, "hybrid")
    for playground, name in ((first, "hybrid"), (second, "storyteller")):
        playground.generate("a few words", tokens=4)
        assert playground.state("view.begin.model.name") == name


@pytest.mark.parametrize(("width", "theme"), [(1440, "dark"), (390, "light")])
def test_the_card_fits_the_screen(page: Callable[..., Playground], width: int, theme: str) -> None:
    playground = page(width, 844, theme)
    assert "What the panels will show" in card(playground)
    assert playground.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_message_is_answered_and_both_turns_stand(page: Callable[..., Playground]) -> None:
    playground = page()
    assert not playground.page.get_by_label("Message").is_visible()
    choose(playground, "talker")
    chosen(playground, "talker")
    playground.page.get_by_label("Message").fill("a few words")
    playground.press("Send")
    turns = playground.page.get_by_role("list", name="Conversation").get_by_role("listitem")
    turns.nth(1).wait_for()
    assert turns.first.inner_text().split() == ["You", "a", "few", "words"]
    playground.settled()
    text = "".join(token["text"] for token in playground.state("store.tokens"))
    assert text.startswith("<user>a few words<assistant>")
    assert playground.page.get_by_label("Message").input_value() == ""
    playground.press("New conversation")
    turns.first.wait_for(state="detached")


def test_a_message_that_is_refused_goes_back_into_its_box(page: Callable[..., Playground]) -> None:
    playground = page()
    choose(playground, "talker")
    chosen(playground, "talker")
    message, long = playground.page.get_by_label("Message"), "a few words " * 3000
    message.fill(long)
    playground.press("Send")
    playground.until("text => document.querySelector('#chat textarea').value === text", long)
    assert playground.page.get_by_text("shorten it to").first.is_visible()


def test_without_a_choice_there_is_no_menu(playground: Playground) -> None:
    assert not playground.page.get_by_label("Model", exact=True).is_visible()
    playground.page.get_by_role("tab", name="Model").click()
    assert not playground.page.get_by_label("Path or hub id").is_visible()
