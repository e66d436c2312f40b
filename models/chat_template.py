"""A conversation as a model's own chat template writes it, rendered where a hostile template can do no harm.

Templates are programs that come with a checkpoint. transformers' sandbox keeps them from the interpreter, but not from
filling the memory or running for ever, so this file is also a program: it renders one template in a process of its own
with a limit on time and memory, with nothing but jinja2 loaded. The environment is the one of transformers'
`apply_chat_template` (`utils/chat_template_utils.py`); a test compares the two.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

ROLES = ("system", "user", "assistant")
SECONDS = 5
MEMORY_BYTES = 512 << 20
LONGEST_TEMPLATE = 1 << 20


class TemplateError(ValueError):
    """A conversation that cannot be written; the message is one sentence."""


@dataclass(frozen=True)
class Turn:
    """What one side says: `role` is system, user or assistant."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise TemplateError(f"The role {str(self.role)[:40]!r} is none of {', '.join(ROLES)}.")
        if not isinstance(self.content, str):
            raise TemplateError("What is said must be text.")


def render(template: str, turns: Sequence[Turn], special: Mapping[str, str], seconds: float = SECONDS) -> str:
    """The text of a conversation up to where the assistant begins to answer.

    Args:
        template: jinja source.
        turns: what was said, oldest first.
        special: special tokens by name (bos_token, eos_token, ...), which templates may write.
        seconds: how long it may take.

    Raises:
        TemplateError: one sentence, when the template fails or takes too much time or memory.
    """
    if len(template) > LONGEST_TEMPLATE:
        raise TemplateError(
            f"The chat template has {len(template):,} characters: {LONGEST_TEMPLATE:,} are read at most."
        )
    asked = {"template": template, "messages": [asdict(each) for each in turns], "special": dict(special)}
    try:
        made = subprocess.run(
            [sys.executable, "-I", "-W", "ignore", __file__],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TemplateError(f"The chat template did not come to an end within {seconds:g} s.") from None
    try:
        told = json.loads(made.stdout)
    except ValueError:
        limit = MEMORY_BYTES >> 20
        raise TemplateError(
            f"The chat template took more than {limit} MiB of memory or failed without a word."
        ) from None
    if "error" in told:
        raise TemplateError(f"The chat template refuses this conversation: {told['error']}.")
    return str(told["text"])


# ---- in the process of its own


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows: the time limit alone
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + 1, SECONDS + 1))


def _environment() -> Any:
    """As transformers makes it, but for what tracks the assistant's part: `generation` blocks are plain text here."""
    from datetime import datetime

    from jinja2 import TemplateError as JinjaError
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise JinjaError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def _answer(asked: Mapping[str, Any]) -> dict[str, str]:
    try:
        template = _environment().from_string(asked["template"])
        text = template.render(messages=asked["messages"], add_generation_prompt=True, tools=None, **asked["special"])
    except MemoryError:
        return {"error": f"it took more than {MEMORY_BYTES >> 20} MiB of memory"}
    except Exception as error:  # whatever a template can raise
        return {"error": " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__}
    return {"text": text}


def main() -> None:
    """Read what to render, write what came of it, as JSON."""
    asked = json.loads(sys.stdin.buffer.read())
    _limit()
    sys.stdout.write(json.dumps(_answer(asked)))


if __name__ == "__main__":
    main()
