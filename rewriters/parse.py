"""The strict parser of `<think>…</think><rewrite>…</rewrite>`, for a policy in training (`read_tagged` for others).

Pure functions of the text sampled in one turn. The prompt is never parsed, so tags in instructions, examples or
documents earn nothing; and since an answer must begin with `<think>`, every answer fails if a caller puts the prompt in
front of it.

The grammar: one `<think>` part (may be empty), then one or more `<rewrite>` parts, whitespace between them, and nothing
else but end-of-turn marks. A think part ends at the first `</think>`; a rewrite ends at the first `</rewrite>` and may
hold anything but the four tags themselves: `p < 0.05` and `</b>` are text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..envs.plan import is_unicode
from ..llms.base import THINK_CLOSE, THINK_OPEN
from ..llms.lines import is_placeholder
from ..llms.prose import REFUSAL, answer_of, is_refusal, passage_of, unquoted, without_end_of_turn

REWRITE_OPEN, REWRITE_CLOSE = "<rewrite>", "</rewrite>"
MAX_REWRITES = 4
"""Rewrites of an answer; more is a format failure."""
TAGS = (THINK_OPEN, THINK_CLOSE, REWRITE_OPEN, REWRITE_CLOSE)

_REWRITE = re.compile(r"<\s*rewrite\s*>(.*?)<\s*/\s*rewrite\s*>", re.IGNORECASE | re.DOTALL)
_REWRITE_TAG = re.compile(r"<\s*/?\s*rewrite\s*>", re.IGNORECASE)

_REWRITE_LINE = re.compile(
    r"^\W*(?:\w+ )?(?:rewrite|query)(?: is)?\W*[:：$] ?[*_ \t]*(\S.*)$", re.IGNORECASE | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of an answer, stripped of surrounding whitespace. `rewrites` is empty exactly if parsing failed."""

    think: str = ""
    rewrites: tuple[str, ...] = ()
    failure: str = ""
    """Why parsing failed, in two or three words; "" if it did not."""


def render(think: str, rewrites: Sequence[str]) -> str:
    """Write an answer in the output format; `parse` reads it back where no part contains a tag."""
    return f"{THINK_OPEN}{think}{THINK_CLOSE}" + "".join(f"{REWRITE_OPEN}{text}{REWRITE_CLOSE}" for text in rewrites)


def parse(text: str) -> Parsed:
    """Parse the text sampled in one turn. Never raises: a format error is returned as a failure."""
    remaining = without_end_of_turn(text)
    if not remaining:
        return Parsed(failure="empty answer")
    if not is_unicode(remaining):
        return Parsed(failure="invalid unicode")
    if not remaining.startswith(THINK_OPEN):
        return Parsed(failure="text outside tags" if THINK_OPEN in remaining else "missing think")
    think, closed, remaining = remaining.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    think, remaining = think.strip(), remaining.lstrip()
    if not closed:
        return Parsed(failure="unclosed think")

    rewrites: list[str] = []
    while remaining.startswith(REWRITE_OPEN):
        body, closed, remaining = remaining.removeprefix(REWRITE_OPEN).partition(REWRITE_CLOSE)
        body, remaining = body.strip(), remaining.lstrip()
        failure = _rewrite_failure(body, bool(closed), allowed=len(rewrites) < MAX_REWRITES)
        if failure:
            return Parsed(think, failure=failure)
        rewrites.append(body)
    if remaining:
        return Parsed(
            think, failure="text outside tags" if rewrites or REWRITE_OPEN in remaining else "missing rewrite"
        )
    if not rewrites:
        return Parsed(think, failure="missing rewrite")
    return Parsed(think, tuple(rewrites))


def _rewrite_failure(body: str, closed: bool, allowed: bool) -> str:
    if any(tag in body for tag in TAGS):
        return "nested tag"
    if not closed:
        return "unclosed rewrite"
    if not body:
        return "empty rewrite"
    return "" if allowed else "too many rewrites"


def parse_plain(text: str) -> Parsed:
    """Parse an answer without tags: after an optional `<think>` part, all of it is the one rewrite.

    No format is required, so it fails only if there is nothing to search with.
    """
    text = without_end_of_turn(text)
    if not is_unicode(text):
        return Parsed(failure="invalid unicode")
    think, body, unclosed = without_think(text)
    if unclosed:
        return Parsed(think, failure="unclosed think")
    return Parsed(think, (body,)) if body else Parsed(think, failure="empty answer")


def without_think(text: str) -> tuple[str, str, str]:
    """The think part that `text` begins with, what follows it, and "unclosed think" where it never ends, else ""."""
    if not text.startswith(THINK_OPEN):
        return "", text, ""
    think, closed, answer = text.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return think.strip(), answer.strip(), "" if closed else "unclosed think"


def read_tagged(text: str, placeholders: Sequence[str] = ()) -> Parsed:
    """The rewrites in the tags of a prompted model, whatever it writes around them.

    `placeholders` are the texts that the prompt itself shows in tags.
    """
    split = answer_of(text)
    if split.failure or not is_unicode(split.answer):
        return Parsed(split.thinking, failure=split.failure or "invalid unicode")
    bodies = [" ".join(body.split()) for body in _REWRITE.findall(split.answer)]
    rewrites = tuple(dict.fromkeys(body for body in bodies if body not in placeholders))
    if not _REWRITE_TAG.search(split.answer):
        rewrites = tuple(dict.fromkeys(map(unquoted, _REWRITE_LINE.findall(split.answer))))[:2]
        rewrites = rewrites if len(rewrites) == 1 else ()
    failure = ""
    if any(map(_REWRITE_TAG.search, bodies)) or len(bodies) * 2 < len(_REWRITE_TAG.findall(split.answer)):
        failure = "unclosed rewrite"
    elif not rewrites:
        failure = REFUSAL if is_refusal(split.answer) else "missing rewrite"
    elif any(not rewrite or is_placeholder(rewrite) for rewrite in rewrites):
        failure = "empty rewrite"
    elif len(rewrites) > MAX_REWRITES:
        failure = "too many rewrites"
    return Parsed(split.thinking, failure=failure) if failure else Parsed(split.thinking, rewrites)


def read_passage(text: str) -> Parsed:
    """The passage that is the whole answer of a prompted model."""
    if not is_unicode(text):
        return Parsed(failure="invalid unicode")
    passage = passage_of(text)
    return Parsed(passage.thinking, (passage.answer,) if passage.answer else (), passage.failure)
