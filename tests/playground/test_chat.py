"""Conversations: what the model reads is what transformers would give it, and hostile templates do no harm."""

from __future__ import annotations

import copy
import dataclasses
import time

import pytest

from models import Loaded
from models.chat_template import TemplateError, Turn, render
from playground import Decoding, chat
from playground.chat import prepare_chat
from playground.sessions import Store, Worker
from playground.talks import Talks

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ eos_token + '[INST] ' + (system if loop.first else '') + m['content'] | trim + ' [/INST]' }}{% else %}"
    "{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
TRACKED = "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% if loop.index > 9 %}{% break %}{% endif %}{% endfor %}"  # noqa: E501
TALK = [
    Turn("system", "Be kind."),
    Turn("user", "Who <b>are</b> you?"),
    Turn("assistant", "A cat."),
    Turn("user", "Why?"),
]


@pytest.fixture
def talker(tiny: Loaded) -> Loaded:
    """The tiny model with a tokenizer that knows how to chat."""
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = CHATML
    card = dataclasses.replace(tiny.card, chat_template=True)
    return dataclasses.replace(tiny, tokenizer=tokenizer, card=card)


@pytest.mark.parametrize("template", [CHATML, LLAMA_2, TRACKED])
def test_what_the_model_reads_is_what_transformers_makes(talker: Loaded, template: str) -> None:
    talker.tokenizer.chat_template = template
    told = [dataclasses.asdict(each) for each in TALK]
    expected = talker.tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
    assert render(template, TALK, {"eos_token": talker.tokenizer.eos_token}) == expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 'a' * 800000000 }}", "512 MiB of memory"),
        ("{% set n = namespace(s='aaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "512 MiB"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not come to an end"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception('Only two turns, please.') }}", "refuses this conversation: Only two turns, please."),
        ("{% if %}", "refuses this conversation"),
    ],
)  # fmt: skip
def test_a_hostile_template_is_stopped_in_one_sentence(template: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        render(template, TALK, {}, seconds=2 if "end" in words else 60)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 90


def test_an_answer_begins_after_the_conversation(talker: Loaded) -> None:
    run = chat(talker, [Turn("user", "Who?")], Decoding(max_new_tokens=3, temperature=0.0)).finish()
    written = talker.tokenizer.decode(run.token_ids[: run.prompt_length])
    assert written.endswith("<|im_start|>assistant\n")
    assert len(run.steps) == 3
    assert run.attention(0).shape[1] == run.prompt_length + 2


def test_the_oldest_turns_leave_first_and_it_is_said(talker: Loaded) -> None:
    turns = [Turn("system", "s"), *[Turn(("user", "assistant")[i % 2], f"t{i}") for i in range(7)]]
    card = dataclasses.replace(talker.card, context_length=400)
    small = dataclasses.replace(talker, card=card)
    whole = prepare_chat(small, turns, 8)
    assert (whole.cut, whole.words) == ((), "")
    card = dataclasses.replace(talker.card, context_length=len(whole.token_ids))
    cut = prepare_chat(dataclasses.replace(talker, card=card), turns, 8)
    assert [each.content for each in cut.cut] == ["t0", "t1"]
    assert [each.content for each in cut.kept] == ["s", "t2", "t3", "t4", "t5", "t6"]
    assert len(cut.token_ids) + 8 <= card.context_length
    assert cut.cut_tokens == len(whole.token_ids) - len(cut.token_ids)
    assert f"its 2 oldest turns ({cut.cut_tokens} tokens) were left out" in cut.words


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([], "Nothing was said"),
        ([Turn("user", " ")], "Nothing was said"),
        ([Turn("user", "hi"), Turn("assistant", "ho")], "Nothing was said"),
        ([Turn("user", "x" * 500)], "What was said last has"),
    ],
)
def test_what_cannot_be_answered_is_refused(talker: Loaded, turns: list[Turn], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chat(talker, turns)


def test_a_model_without_a_template_says_so(tiny: Loaded) -> None:
    with pytest.raises(ValueError, match="came without a chat template"):
        chat(tiny, [Turn("user", "hi")])


def test_a_role_that_does_not_exist() -> None:
    with pytest.raises(TemplateError, match="'pirate' is none of system, user, assistant"):
        Turn("pirate", "arr")


def test_a_session_remembers_what_was_said_until_a_new_conversation(talker: Loaded) -> None:
    store, decoding = Store(), Decoding(max_new_tokens=3, temperature=0.0, stop_at_end=False)
    worker, talks = Worker(store), Talks(store)

    def say(text: str, system: str = "") -> None:
        entry = talks.converse("me", talker, text, system, decoding)
        while not entry.settled:
            worker.advance(entry)

    say("hi", "short")
    assert [each.role for each in talks.so_far("me")] == ["system", "user", "assistant"]
    say("and?", "shorter")
    assert [each.content for each in talks.so_far("me") if each.role != "assistant"] == ["shorter", "hi", "and?"]
    assert talks.so_far("you") == ()
    talks.forget("me")
    assert talks.so_far("me") == ()
