"""What a model writes around its answer: thinking, end-of-turn marks, code fences, preambles, remarks, refusals.

For answers of prompted models, which were never trained on a form. The parser of a policy in training is strict
(rewriters/parse.py).

Thinking is everything up to the last closing tag, with or without an opening tag: the chat templates of DeepSeek-R1,
QwQ and Qwen3-Thinking open it in the prompt. Thinking that is opened and never closed leaves no answer.
"""

import re
from typing import NamedTuple

UNCLOSED = "unclosed think"
"""The failure of a text that ends while the model thinks."""
REFUSAL = "refusal"
"""The failure of a text in which the model declines instead of answering."""
END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>")
"""Marks that may follow an answer if the caller decodes special tokens."""

_NAMES = "think|thinking|thought|thoughts|reasoning|seed:think"
_OPEN = re.compile(rf"^[ \t]*(?:<(?:{_NAMES})>|\[THINK\]|◁think▷)", re.IGNORECASE | re.MULTILINE)
_CLOSE = re.compile(rf"</(?:{_NAMES})>|\[/THINK\]|◁/think▷", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|channel\|>(\w+)[^<]*<\|message\|>|\A\s*(analysis)(?=[A-Z\s])|(?<=[.?!\s])assistant(final)")
"""gpt-oss: the start of each channel; without special tokens, the names remain."""
_CHANNEL_END = re.compile(r"<\|(?:return|end|start)\|>.*\Z", re.DOTALL)

_FENCE = re.compile(r"(`{3,}|~{3,})(?:[\w+-]*[^\S\n]*\n)?(.*?)(?:\1|\Z)", re.DOTALL)
_FENCE_LINE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[\w+-]*[ \t]*$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:[-*_=][ \t]*){3,}$", re.MULTILINE)
_BLANK = re.compile(r"\n\s*\n")
_PREAMBLE = re.compile(
    r"(?:sure|certainly|of course|okay|ok|absolutely|here|below|great|understood|the following|this is (?:a|the|my)|"
    r"based on|i(?:'ll| will|'ve| have)|let me|to (?:answer|find|address)|as requested|voici|bien sûr|hier|natürlich|"
    r"gerne|aquí|claro|por supuesto|ecco|certo|aqui|com certeza|вот|конечно|以下|"
    r"好的|当然|这是|はい|以下は|もちろん|다음은|물론)",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"[(\[*_>\s]*(?:(?:this|the above|these) (?:[a-z]+ )?(?:passages?|texts?|paragraphs?|answers?) "
    r"(?:is|are|was|were|should|aims?|provides?|covers?|explains?|answers?|summari[sz]es?|mimics?|reflects?)\b"
    r"|(?:i|we) hope\b|hope (?:this|that|these)\b|let me know\b|please (?:note|let|feel)\b|feel free\b|would you like\b"
    r"|(?:note|disclaimer|word count|explanation|rationale)\b[*_ ]*[:：]"
    r"|if you(?:'d like| would like| need (?:more|any|further|additional)| want (?:more|me)"
    r"| have (?:any|more|other|further|additional) (?:question|request))"
    r"|do you want me\b|is there anything (?:else|more)\b"
    r"|n'hésitez|dites-moi|ich hoffe|lassen sie|espero que|avísame|如果您|如果你|希望这|请注意|надеюсь)",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"[\s\"'*_]*(?:unfortunately,? (?:i|we|there is no|the (?:passages?|documents?|text|context))\b|"
    r"as an? (?:ai|(?:large )?language model)\b[^.\n]{0,80}|"
    r"(?:i(?:'m| am) (?:very |so |really )?sorry|sorry|i apologi[sz]e|my apologies)"
    r"(?=[,.!;:]| (?:but|i|that i|for)\b)[^.\n]{0,120}|"
    r"i (?:must|have to|need to) (?:decline|refuse)|i(?:'m| am) (?:not able|unable|not allowed|not comfortable)|"
    r"i (?:can(?:'|no)t|can not|won't|will not|could not|couldn't)\b|i (?:do not|don't)(?: \w+)? "
    r"(?:know|find|see|feel comfortable|have (?:access|enough|any|the ability|specific|information|sufficient|real))|"
    r"i(?:'m| am) not sure|it is not possible (?:for me|to (?:answer|determine|say))|"
    r"there is not enough (?:information|context)|"
    r"(?:this|your) (?:request|question|query) (?:violates|goes against|is (?:not|outside|beyond)|can(?:no|')t be)\b|"
    r"(?:please|could you|can you)[^.\n]{0,20} (?:provide|clarify|share|give|specify)|"
    r"es tut mir leid|tut mir leid|ich kann (?:ihnen|dir|das|diese|keine)|lo siento|no puedo|je suis désolé|désolé|"
    r"je ne peux pas|mi dispiace|desculpe|lamento|抱歉|对不起|對不起|很抱歉|我无法|我不能|"
    r"申し訳|すみません|お答えでき|죄송|извините|"
    r"к сожалению|я не могу)",
    re.IGNORECASE,
)
_SECOND = re.compile(
    r"[^.!?\n]{1,120}[.!?]\s+(?:however,? |but |unfortunately,? )?(i(?:'m| am| can| do| won't| must)\b.*)", re.I | re.S
)
_TITLE = re.compile(
    r"\A\s*(?:[#*_>]+[ \t]*)*(?:hypothetical |sample |example |generated |final |the )?"
    r"(?:passage|answer|document|response|paragraph|rewrite|rewritten query|query|texte?|passaggio|antwort|réponse|"
    r"respuesta|答案|段落|回答)"
    r"(?:[ \t]*[*_]*[:：][*_]*|[ \t*_]*\n)\s*",
    re.IGNORECASE,
)
_ASKED = re.compile(r"\A[#*_> ]*(?:question|query)[*_ ]*[:：]", re.IGNORECASE)
_NOTHING = re.compile(r"\[[^\]]*\]|<[^>]*>|…|\.{3}|\(?(?:n/?a|none|nothing|null|empty|-+)\)?\.?", re.IGNORECASE)
_SPEAKER = re.compile(r"\A\s*[*_]*(?:assistant|ai|model|response)[*_]*[:：][*_]*\s*", re.IGNORECASE)
_WRAPPED = re.compile(r"<(answer|passage|document|response|output|final_answer)>(.*)</\1>", re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile(
    r"^[\s#>\-]*[*_]*(?:(?:so|thus|therefore|hence),? )?(?:the |my )?(?:final |short |correct )?"
    r"(?:answer|answers|antwort|réponse|respuesta|risposta|resposta|ответ|答案|回答|答え|정답|답)"
    r"(?: to (?:the|this|your) question)?(?: is)?[ *_]*[:：][ \t*_]*(?:\n\s*)?(.*?)[\s*_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_ANSWER_IS = re.compile(
    r"[\s*_>#\-]*(?:the |my )?(?:final |short |correct )?answer(?: to (?:the|this|your) question)? is[ \t*_]+(?=\S)",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed[ \t]*\{(?:\\text[ \t]*\{)?([^{}\n]+)\}")
_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u200b": "", "\ufeff": ""})
_QUOTES = (
    ('"', '"'),
    ("“", "”"),
    ("„", "“"),
    ("«", "»"),
    ("「", "」"),
    ("'", "'"),
    ("`", "`"),
    ("**", "**"),
    ("*", "*"),
)


class SplitAnswer(NamedTuple):
    """A text in two parts."""

    thinking: str
    answer: str
    failure: str = ""
    """`UNCLOSED` if the thinking never ends; then there is no answer."""


def split_thinking(text: str) -> SplitAnswer:
    """The thinking of a text, and the answer after it; a text without thinking is all answer."""
    if channels := list(_CHANNEL.finditer(text)):
        last = channels[-1]
        name = next(filter(None, last.groups()))
        if name == "final":
            answer = _CHANNEL_END.sub("", text[last.end() :])
            return SplitAnswer(_CHANNEL_END.sub("", text[channels[0].end() : last.start()]).strip(), answer.strip())
        if name == "analysis":
            return SplitAnswer(text[last.end() :].strip(), "", UNCLOSED)
    closes = list(_CLOSE.finditer(text))
    opened = _OPEN.search(text)
    if closes:
        start = (
            opened.end() if opened and opened.end() <= closes[0].start() and not text[: opened.start()].strip() else 0
        )
        thinking, answer = text[start : closes[-1].start()].strip(), text[closes[-1].end() :]
        reopened = _OPEN.search(answer)
        return SplitAnswer(thinking, "", UNCLOSED) if reopened else SplitAnswer(thinking, answer.strip())
    if opened:
        return SplitAnswer(text[opened.end() :].strip(), "", UNCLOSED)
    return SplitAnswer("", text.strip())


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
    """`split_thinking` of a text without end-of-turn marks; an empty answer is a failure too."""
    split = split_thinking(without_end_of_turn(text.replace("\r\n", "\n").translate(_SPACES)))
    split = split._replace(answer=_SPEAKER.sub("", split.answer))
    return split if split.failure or split.answer else split._replace(failure="empty answer")


def without_fences(text: str) -> str:
    """`text` with a blank line instead of each line that opens or closes a code fence, and of each horizontal rule."""
    return _RULE.sub("\n", _FENCE_LINE.sub("\n", text))


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each stripped."""
    return [part.strip() for part in _BLANK.split(text) if part.strip()]


def is_refusal(text: str) -> bool:
    """Whether a text begins by declining to answer, in its first sentence or, after a courtesy, in the second."""
    text = text.replace("’", "'")
    second = _SECOND.match(text)
    return _REFUSAL.match(text) is not None or (second is not None and _REFUSAL.match(second[1]) is not None)


def is_nothing(text: str) -> bool:
    """Whether a text says that there is none: "N/A", "[removed]"."""
    return _NOTHING.fullmatch(text) is not None


def is_remark(text: str) -> bool:
    """Whether a paragraph or line speaks about the answer instead of being part of it."""
    return _REMARK.match(text.replace("’", "'")) is not None


def is_preamble(text: str) -> bool:
    """Whether a line announces the answer that follows it."""
    line = text.rstrip("*_ ")
    return (
        "\n" not in line
        and line.endswith((":", "："))
        and (_PREAMBLE.match(line.lstrip("*_# ")) is not None or is_refusal(line))
    )


def passage_of(text: str) -> SplitAnswer:
    """The passage that a text consists of: without thinking, announcement, title, fence, quotes and closing remarks."""
    split = answer_of(text)
    if split.failure:
        return split
    wrapped = _WRAPPED.search(split.answer)
    body = wrapped[2] if wrapped else split.answer
    if all(line.startswith(">") for line in body.strip().splitlines()):
        body = "\n".join(line.lstrip("> ") for line in body.strip().splitlines())
    fenced = _FENCE.findall(body)
    if len(fenced) == 1 and fenced[0][1].strip():
        body = fenced[0][1]
    first, _, remainder = without_fences(body).strip().partition("\n")
    blocks = paragraphs(remainder if remainder.strip() and is_preamble(first) else f"{first}\n{remainder}")
    while len(blocks) > 1 and is_remark(blocks[-1]):
        blocks.pop()
    if len(blocks) > 1 and _ASKED.match(blocks[0]) and _TITLE.match(blocks[1]):
        del blocks[0]
    if blocks and is_refusal(blocks[0]):
        return split._replace(answer="", failure=REFUSAL)
    lines = blocks[0].split("\n") if blocks else []
    if len(lines) > 1 and is_preamble(lines[0]):
        blocks[0] = "\n".join(lines[1:])
    passage = unquoted(_TITLE.sub("", "\n\n".join(blocks), count=1)) if blocks else ""
    if is_nothing(passage) or _only_announces(passage):
        passage = ""
    return split._replace(answer=passage) if passage else split._replace(answer="", failure="empty answer")


def _only_announces(text: str) -> bool:
    """Whether every line of a text announces another one: "The passage is:"."""
    return all(line.rstrip("*_ \t").endswith((":", "：")) for line in text.splitlines() if line.strip())


def unquoted(text: str) -> str:
    """`text` without whitespace, quotation marks and emphasis that surround all of it."""
    text = text.strip()
    for opening, closing in _QUOTES:
        inner = text.removeprefix(opening).removesuffix(closing)
        if len(inner) == len(text) - len(opening) - len(closing) and opening not in inner and closing not in inner:
            return unquoted(inner)
    return text


def marked_answer(text: str) -> str | None:
    """The last non-empty text behind an "Answer:" that begins a line, or else in a box; None without either.

    A model that repeats "The answer is:" has answered with what follows the last repetition on that line.
    """
    answers = [answer for answer in map(_behind_marks, _ANSWER.findall(text)) if answer] or _BOXED.findall(text)
    return answers[-1] if answers else None


def short_answer(text: str) -> str:
    """The paragraph behind "Answer:" or "The answer is" at the beginning of a text, or else all of the text.

    Small models begin a short answer like this, and go on with an explanation that was not asked for.
    """
    if mark := _ANSWER.match(text):
        start = mark.start(1)
    elif sentence := _ANSWER_IS.match(text):
        start = sentence.end()
    else:
        return text
    behind = paragraphs(text[start:])
    return short_answer(behind[0]).strip(" *_") if behind else ""


def _behind_marks(answer: str) -> str:
    while (mark := _ANSWER.match(answer)) is not None:
        answer = mark[1]
    return answer
