"""What a model writes around its answer: thinking, end-of-turn marks, a code fence, an announcement, quotes.

Thinking is everything up to the last closing tag, with or without an opening tag: the chat templates of DeepSeek-R1,
QwQ and Qwen3-Thinking open it in the prompt. Thinking that is opened and never closed leaves no answer.
"""

import re
from typing import NamedTuple

UNCLOSED = "unclosed think"
"""The failure of a text that ends while the model thinks."""

_END_OF_TURN = re.compile(r"(?:(?:<\|(?:im_end|return|endoftext|eot_id|end_of_text|end)\|>|<end_of_turn>|</s>)\s*)+\Z")
_OPEN = re.compile(r"^[ \t]*<think(?:ing)?>", re.IGNORECASE | re.MULTILINE)
_CLOSE = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[\w+-]*[ \t]*$", re.MULTILINE)
_ANNOUNCEMENT = re.compile(r"\A[^\n]*[:：][*_ \t]*\n+(?=\S)")
_ANSWER = re.compile(r"^[\s#>*_-]*(?:the )?(?:final )?answer(?: is)?[ *_]*[:：][ \t*_]*(.*?)[\s*_]*$", re.I | re.M)
_BOXED = re.compile(r"\$*\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}\$*")
_LATEX = re.compile(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}")
_QUOTES = (('"', '"'), ("“", "”"), ("'", "'"), ("`", "`"), ("**", "**"), ("*", "*"))


class SplitAnswer(NamedTuple):
    """A text in two parts."""

    thinking: str
    answer: str
    failure: str = ""
    """Why there is no answer; "" if there is one."""


def split_thinking(text: str) -> SplitAnswer:
    """The thinking of a text, and the answer after it; a text without thinking is all answer."""
    opened, closes = _OPEN.search(text), list(_CLOSE.finditer(text))
    if not closes:
        return SplitAnswer(text[opened.end() :].strip(), "", UNCLOSED) if opened else SplitAnswer("", text.strip())
    begins = opened is not None and not text[: opened.start()].strip()
    thinking = text[opened.end() if begins and opened else 0 : closes[-1].start()].strip()
    answer = text[closes[-1].end() :].strip()
    return SplitAnswer(thinking, "", UNCLOSED) if _OPEN.search(answer) else SplitAnswer(thinking, answer)


def without_thinking(text: str) -> str:
    """The answer of a text; "" if its thinking never ends."""
    return split_thinking(text).answer


def without_end_of_turn(text: str) -> str:
    """`text` without surrounding whitespace and the marks that follow an answer if special tokens are decoded."""
    return _END_OF_TURN.sub("", text).strip()


def answer_of(text: str) -> SplitAnswer:
    """`split_thinking` of a text without end-of-turn marks; an empty answer is a failure too."""
    split = split_thinking(without_end_of_turn(text))
    return split if split.failure or split.answer else split._replace(failure="empty answer")


def passage_of(text: str) -> SplitAnswer:
    """The passage that a text consists of: without thinking, fence, announcement and quotes around it."""
    split = answer_of(text)
    passage = unquoted(_ANNOUNCEMENT.sub("", _FENCE.sub("", split.answer).strip()))
    failure = split.failure or ("" if passage else "empty answer")
    return split._replace(answer=passage, failure=failure)


def unquoted(text: str) -> str:
    """`text` without whitespace, quotation marks and emphasis that surround all of it."""
    text = text.strip()
    for opening, closing in _QUOTES:
        inner = text.removeprefix(opening).removesuffix(closing)
        if len(inner) == len(text) - len(opening) - len(closing) and opening not in inner and closing not in inner:
            return unquoted(inner)
    return text


def boxed(text: str) -> list[str]:
    r"""The content of each \boxed{…}, without LaTeX around it."""
    return [_LATEX.sub(r"\1", box).replace(r"\\", "\n").strip() for box in _BOXED.findall(text)]


def marked_answers(text: str) -> list[str]:
    """The non-empty texts behind "Answer:" at the beginning of a line, or else in a box."""
    return list(filter(None, _ANSWER.findall(text))) or boxed(text)
