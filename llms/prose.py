"""What a model writes around its answer: thinking, end-of-turn marks, a code fence, an announcement, a refusal.

Thinking is everything up to the last closing tag, with or without an opening tag: the chat templates of DeepSeek-R1,
QwQ and Qwen3-Thinking open it in the prompt. Thinking that is opened and never closed leaves no answer.
"""

import re
from typing import NamedTuple

UNCLOSED = "unclosed think"
"""The failure of a text that ends while the model thinks."""
REFUSAL = "refusal"
"""The failure of a text in which the model declines instead of answering."""
END_OF_TURN = (
    "<|im_end|>",
    "<|return|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)
"""Marks that may follow an answer if the caller decodes special tokens."""

_OPEN = re.compile(r"^[ \t]*<(?:think|thinking|thought|reasoning)>", re.IGNORECASE | re.MULTILINE)
_CLOSE = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_FINAL_CHANNEL = "<|channel|>final<|message|>"
"""What follows it is the answer (gpt-oss)."""
_CONTROL = re.compile(r"<\|\w+\|>")
_FENCE_LINE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[\w+-]*[ \t]*$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:[-*_=][ \t]*){3,}$", re.MULTILINE)
_REFUSAL = re.compile(
    r"\W*(?:unfortunately,? )?(?:sorry|as an ai|this request|there is not enough|"
    r"(?:could you )?please (?:provide|clarify)|i(?:'m)? (?:\w+ )?(?:not|cannot|can't|don't know|unable|sorry))\b",
    re.IGNORECASE,
)
_PREAMBLE = re.compile(
    r"\W*(?:(?:sure|certainly|of course|absolutely|great|okay|ok|here|below|the following|this is (?:a|the|my)|"
    r"based on|i(?:'ll| will|'ve| have)|let me|voici|hier|aquí)\b|以下|这是)",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"\W*(?:note:|(?:i hope|let me know|please note|would you like|if you need|word count|disclaimer)\b)", re.IGNORECASE
)
_NOTHING = re.compile(r"\[[^\]]*\]|<[^>]*>|…|\.{3}|\W*(?:n/?a|none|nothing)\W*", re.IGNORECASE)
_TAGGED = re.compile(r"<(\w+)>(.*)</\1>", re.DOTALL)
_TITLE = re.compile(
    r"\A\W*(?:assistant|(?:hypothetical )?passage|answer|document|response|rewrite|query)[*_ \t]*"
    r"(?:[:：]|(?=\n))[*_\s]*",
    re.IGNORECASE,
)
_ANSWER = re.compile(
    r"^[\s#>*_-]*(?:(?:so|thus|therefore),? )?(?:the |my )?(?:final |short |correct )?answer"
    r"(?: to (?:the|this|your) question)?(?: is\b[ *_]*[:：]?|[ *_]*[:：])[ \t*_]*(?:\n\s*)?(.*?)[\s*_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_BOXED = re.compile(r"\$*\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}\$*")
_LATEX = re.compile(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}")
_QUOTES = (('"', '"'), ("“", "”"), ("'", "'"), ("`", "`"), ("**", "**"), ("*", "*"))


class SplitAnswer(NamedTuple):
    """A text in two parts."""

    thinking: str
    answer: str
    failure: str = ""
    """`UNCLOSED` if the thinking never ends; then there is no answer."""


def split_thinking(text: str) -> SplitAnswer:
    """The thinking of a text, and the answer after it; a text without thinking is all answer."""
    opened, closes = _OPEN.search(text), list(_CLOSE.finditer(text))
    if not closes:
        if opened:
            return SplitAnswer(text[opened.end() :].strip(), "", UNCLOSED)
        return SplitAnswer("", text.strip())
    begins = opened is not None and not text[: opened.start()].strip()
    thinking = text[opened.end() if begins and opened else 0 : closes[-1].start()].strip()
    answer = text[closes[-1].end() :].strip()
    return SplitAnswer(thinking, "", UNCLOSED) if _OPEN.search(answer) else SplitAnswer(thinking, answer)


def without_thinking(text: str) -> str:
    """The answer of a text; "" if its thinking never ends."""
    return split_thinking(text).answer


def without_end_of_turn(text: str) -> str:
    """`text` without surrounding whitespace and the marks that may follow an answer."""
    text = text.strip()
    while mark := next((mark for mark in END_OF_TURN if text.endswith(mark)), None):
        text = text.removesuffix(mark).rstrip()
    return text


def answer_of(text: str) -> SplitAnswer:
    """`split_thinking` of a text without end-of-turn marks; an empty answer is a failure too, and one that still holds
    control tokens."""
    text = unboxed(text.replace("\r\n", "\n").replace("\u00a0", " ")).rpartition(_FINAL_CHANNEL)[2]
    split = split_thinking(without_end_of_turn(text))
    if _CONTROL.search(split.answer):
        return split._replace(answer="", failure="control tokens")
    return split if split.failure or split.answer else split._replace(failure="empty answer")


def boxed(text: str) -> list[str]:
    r"""The content of each \boxed{…}, without LaTeX around it."""
    return [_LATEX.sub(r"\1", box).replace(r"\\", "\n").strip() for box in _BOXED.findall(text)]


def unboxed(text: str) -> str:
    r"""`text` with the content of each \boxed{…} in its place."""
    return _BOXED.sub(lambda box: boxed(box[0])[0], text)


def without_fences(text: str) -> str:
    """`text` with a blank line instead of each line that opens or closes a code fence, and of each horizontal rule."""
    return _RULE.sub("\n", _FENCE_LINE.sub("\n", text))


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each stripped."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def is_refusal(text: str) -> bool:
    """Whether a text begins by declining to answer."""
    return _REFUSAL.match(text.replace("’", "'")) is not None


def is_remark(text: str) -> bool:
    """Whether a paragraph or line speaks about the answer instead of being part of it."""
    return _REMARK.match(text) is not None


def passage_of(text: str) -> SplitAnswer:
    """The passage that a text consists of: without thinking, announcement, title, fence, quotes and closing remarks."""
    split = answer_of(text)
    if split.failure:
        return split
    tagged = _TAGGED.fullmatch(split.answer)
    lines = without_fences(tagged[2] if tagged else split.answer).strip().split("\n")
    announced = _PREAMBLE.match(lines[0].replace("’", "'")) or is_refusal(lines[0])
    if len(lines) > 1 and announced and lines[0].rstrip("*_ ").endswith((":", "：")):
        del lines[0]
    blocks = paragraphs("\n".join(lines))
    while len(blocks) > 1 and is_remark(blocks[-1]):
        blocks.pop()
    if blocks and is_refusal(blocks[0]):
        return split._replace(answer="", failure=REFUSAL)
    passage = unquoted(_TITLE.sub("", "\n\n".join(blocks), count=1))
    if _NOTHING.fullmatch(passage) or all(line.endswith((":", "：")) for line in passage.splitlines() if line):
        passage = ""
    return split._replace(answer=passage) if passage else split._replace(answer="", failure="empty answer")


def unquoted(text: str) -> str:
    """`text` without whitespace, quotation marks and emphasis that surround all of it."""
    text = text.strip()
    for opening, closing in _QUOTES:
        inner = text.removeprefix(opening).removesuffix(closing)
        if len(inner) == len(text) - len(opening) - len(closing) and opening not in inner and closing not in inner:
            return unquoted(inner)
    return text


def marked_answers(text: str) -> list[str]:
    """The non-empty texts behind "Answer:" or "The answer is" at the beginning of a line, or else in a box."""
    return list(filter(None, map(behind_marks, _ANSWER.findall(text)))) or boxed(text)


def behind_marks(answer: str) -> str:
    """The line after a "The answer is:" that begins a text, maybe repeatedly; without one, all of the text."""
    while mark := _ANSWER.match(answer):
        answer = mark[1]
    return answer
