"""The strict parser of `<think>…</think><rewrite>…</rewrite>`.

Pure functions of the text that was sampled in one turn. Nothing of the prompt ever comes here, so tags that stand in
instructions, examples or documents earn nothing; and since an answer must begin with `<think>`, a caller that put the
prompt in front would see every answer fail.

The grammar: one `<think>` part (may be empty), then one or more `<rewrite>` parts, whitespace between them, and
nothing else but end-of-turn marks. A think part ends at the first `</think>`; a rewrite ends at the first `</rewrite>`
and may hold anything but the four tags themselves: `p < 0.05` and `</b>` are text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..envs.plan import is_unicode
from ..llms.base import THINK_CLOSE, THINK_OPEN

REWRITE_OPEN, REWRITE_CLOSE = "<rewrite>", "</rewrite>"
TAGS = (THINK_OPEN, THINK_CLOSE, REWRITE_OPEN, REWRITE_CLOSE)

END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>")
"""Marks that may follow an answer, for callers that decode with special tokens kept."""

Failure = Literal[
    "",
    "empty answer",
    "missing think",
    "unclosed think",
    "missing rewrite",
    "unclosed rewrite",
    "nested tag",
    "empty rewrite",
    "too many rewrites",
    "text outside tags",
    "invalid unicode",
]


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of an answer, stripped of surrounding whitespace. `rewrites` is empty exactly when it failed."""

    think: str = ""
    rewrites: tuple[str, ...] = ()
    failure: Failure = ""


def render(think: str, rewrites: Sequence[str]) -> str:
    """Write an answer in the output format; `parse` reads it back where no part contains a tag."""
    return f"{THINK_OPEN}{think}{THINK_CLOSE}" + "".join(f"{REWRITE_OPEN}{text}{REWRITE_CLOSE}" for text in rewrites)


def parse(text: str, max_rewrites: int = 4) -> Parsed:
    """Read the text sampled in one turn. Never raises: what does not keep to the format comes back as a failure."""
    rest = without_end_of_turn(text)
    if not rest:
        return Parsed(failure="empty answer")
    if not is_unicode(rest):
        return Parsed(failure="invalid unicode")
    if not rest.startswith(THINK_OPEN):
        return Parsed(failure="text outside tags" if THINK_OPEN in rest else "missing think")
    think, closed, rest = rest.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    think, rest = think.strip(), rest.lstrip()
    if not closed:
        return Parsed(failure="unclosed think")

    rewrites: list[str] = []
    while rest.startswith(REWRITE_OPEN):
        body, closed, rest = rest.removeprefix(REWRITE_OPEN).partition(REWRITE_CLOSE)
        body, rest = body.strip(), rest.lstrip()
        failure = _rewrite_failure(body, bool(closed), room=len(rewrites) < max_rewrites)
        if failure:
            return Parsed(think, failure=failure)
        rewrites.append(body)
    if rest:
        return Parsed(think, failure="text outside tags" if rewrites or REWRITE_OPEN in rest else "missing rewrite")
    if not rewrites:
        return Parsed(think, failure="missing rewrite")
    return Parsed(think, tuple(rewrites))


def _rewrite_failure(body: str, closed: bool, room: bool) -> Failure:
    if any(tag in body for tag in TAGS):
        return "nested tag"
    if not closed:
        return "unclosed rewrite"
    if not body:
        return "empty rewrite"
    return "" if room else "too many rewrites"


def parse_plain(text: str) -> Parsed:
    """Read an answer without tags: all of it is the one rewrite, but for a `<think>` part that it may begin with.

    Nothing is asked of its form, so it fails only where there is nothing to search with.
    """
    text = without_end_of_turn(text)
    if not is_unicode(text):
        return Parsed(failure="invalid unicode")
    think, body, unclosed = without_think(text)
    if unclosed:
        return Parsed(think, failure="unclosed think")
    return Parsed(think, (body,)) if body else Parsed(think, failure="empty answer")


def without_end_of_turn(text: str) -> str:
    """`text` without surrounding whitespace and the marks that may follow an answer."""
    text = text.strip()
    while mark := next((mark for mark in END_OF_TURN if text.endswith(mark)), None):
        text = text.removesuffix(mark).rstrip()
    return text


def without_think(text: str) -> tuple[str, str, str]:
    """The think part that `text` begins with, what follows it, and "unclosed think" where it never ends, else ""."""
    if not text.startswith(THINK_OPEN):
        return "", text, ""
    think, closed, rest = text.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return think.strip(), rest.strip(), "" if closed else "unclosed think"
