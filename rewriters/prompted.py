"""Reads the answers of prompted models, which were never trained on the form that a prompt asks for.

The parsers of a policy in training are strict (`parse.py`, `parts.py`): rambling earns no format reward there. Here,
what chat models write around an answer is skipped: preambles, code fences, numbering, bold, titles, closing remarks;
labelled parts may also come as JSON or as a list. What could mean two things fails instead of being guessed at: a part
that is missing, there twice with other words, or one too many.
"""

import re
from collections.abc import Mapping, Sequence

from ..envs.plan import is_unicode
from ..llms.json_answers import find_values
from ..llms.lines import is_placeholder
from ..llms.prose import (
    REFUSAL,
    answer_of,
    is_nothing,
    is_preamble,
    is_refusal,
    is_remark,
    paragraphs,
    passage_of,
    unquoted,
    without_fences,
)
from .parse import Parsed

VERSION = 1
"""Raise it when an answer is read in another way: answers that were read before are asked for again."""

_REWRITE = re.compile(r"<\s*rewrite\s*>(.*?)<\s*/\s*rewrite\s*>", re.IGNORECASE | re.DOTALL)
_REWRITE_TAG = re.compile(r"<\s*/?\s*rewrite\s*>", re.IGNORECASE)
_REWRITE_LINE = re.compile(
    r"^[ \t>#*_-]*(?:re-?written |final |search |the )*(?:rewrite|query|rewritten question)[*_ ]*[:：][*_ \t]*(\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_ORDINALS = ("one|first|1st", "two|second|2nd", "three|third|3rd", "four|fourth|4th", "five|fifth|5th")
_WORD_OF_NUMBERED = (
    r"(?:(?:search|refined|targeted|rewritten|alternative|alternate|sub)[ _-]?)*"
    r"(?:query|question|version|paraphrase|rewrite|variation|q|suchanfrage|anfrage|requête|consulta|查询|查詢|запрос|クエリ)"
)
_HEAD = r"^[^\w\n<(\[]{0,8}(?:[(\[]?\d{1,2}[.):\]][ \t]*)?[*_`\"“ \t]*"
_TAIL = (
    r"[*_`\"”]*[ \t]*(?:[(（\[][^()（）\[\]\n]{0,80}[)）\]])?[*_` \t]*"
    r"(?:(?:[-–—:：][ \t]*)?[*_]*(?:role)(?: (?:query|question|evidence|criteria|features?|facts?|hypothesis))*"
    r"(?=[*_`\"” \t]*[:：]))?"
    r"(?:[*_`\"” \t]*(?:[:：]|(?:[.)]|[-–—]+)(?=[ \t]))[*_` \t]*"
    r"(?P<title>[*_]*(?:role)\b[^:：\n]{0,60}$)?|[*_` \t]*$)"
)
"""What follows a label; `title` is a description of the part on the label's line, if the part is on the next one."""
_NUMBERED = re.compile(
    r"^[ \t>*_-]*[(\[]?(\d{1,2}(?=[.):、\]])|[a-j](?=\)))[.):、\]][*_]*[ \t]*"
    r"(.*(?:\n(?![ \t>*_-]*[(\[]?(?:\d{1,2}[.):、\]]|[a-j]\)))\S.*)*)",
    re.MULTILINE,
)
_ITEM_LABEL = re.compile(rf"^[*_]*{_WORD_OF_NUMBERED}[*_]*[:：][*_]*[ \t]*", re.IGNORECASE)
_BULLET = re.compile(r"^[ \t>]*[-*•–][ \t]+(.*)$", re.MULTILINE)
_BOLD_TITLE = re.compile(
    r"^(?:\*\*|__)[^*_\n]{1,60}?(?:[:：](?:\*\*|__)|(?:\*\*|__)[ \t]*(?:\([^)\n]*\))?[ \t]*(?:[:：]|[-–—](?=\s)))[ \t]*"
)
_ASIDE = re.compile(
    r"[(\[*_>\s•-]*(?:(?:these|this|the above|the|each|all (?:three |of these )|together,? these)"
    r"(?: (?!search)[a-z]+){0,2} (?:quer(?:y|ies)|questions?|versions?|search(?:es)?|rewrites?|paraphrases?)"
    r"(?: is| are|,? (?:should|will|would|can|cover|target|focus|aim|provide|use|combine|capture|explore|help|look|"
    r"seek|find|address|approach|highlight|explain|support|tell|test|check|investigate|retain|keep|was|were)(?:s|es)?)\b"
    r"|(?:this|it|these) (?:aims?|supports?|targets?|tests?|checks?|distinguish(?:es)?|looks? for|focus(?:es)?) "
    r"|(?:reasoning|purpose|why|focus|goal|intent|justification)\b[*_ ]*[:：])",
    re.IGNORECASE,
)
"""A line about a query rather than part of it."""
_CONTINUED = re.compile(r"(?:[,(\[/&+-]|\b(?:AND|OR|NOT|and|or|of|the|in|for|with|vs\.?))\s*$")
_NAMED_LIST = re.compile(
    r"quer|question|version|search|paraphras|rewrit|rephras|reformul|variation|anfrage|frage|requête|consulta|pregunta|"
    r"domand|pergunta|查询|查詢|问题|版本|запрос|вопрос|クエリ|質問|질문|쿼리",
    re.IGNORECASE,
)
_PLEASANTRY = re.compile(
    r"(?:sure|certainly|of course|okay|ok|absolutely|here you go|here they are)[!.,:]*", re.IGNORECASE
)


def read_tagged(text: str, max_rewrites: int, placeholders: Sequence[str] = ()) -> Parsed:
    """The rewrites of an answer in tags. `placeholders` are the texts that the prompt itself shows in tags."""
    split = answer_of(text)
    if split.failure:
        return Parsed(split.thinking, failure=split.failure)
    if not is_unicode(split.answer):
        return Parsed(failure="invalid unicode")
    bodies = [" ".join(body.split()) if "\n" in body else body.strip() for body in _REWRITE.findall(split.answer)]
    rewrites = tuple(dict.fromkeys(body for body in bodies if body not in placeholders))
    if not bodies and not _REWRITE_TAG.search(split.answer):
        if is_refusal(split.answer):
            return Parsed(split.thinking, failure=REFUSAL)
        lines = {unquoted(line) for line in _REWRITE_LINE.findall(without_fences(split.answer))}
        rewrites = tuple(lines) if len(lines) == 1 else ()
    if any(_REWRITE_TAG.search(body) for body in bodies) or len(bodies) * 2 < len(_REWRITE_TAG.findall(split.answer)):
        return Parsed(split.thinking, failure="unclosed rewrite")
    if not rewrites:
        return Parsed(split.thinking, failure="missing rewrite")
    if not all(rewrites) or any(is_placeholder(rewrite) for rewrite in rewrites):
        return Parsed(split.thinking, failure="empty rewrite")
    if len(rewrites) > max_rewrites:
        return Parsed(split.thinking, failure="too many rewrites")
    return Parsed(split.thinking, rewrites)


def read_passage(text: str) -> Parsed:
    """The passage that is the whole answer."""
    if not is_unicode(text):
        return Parsed(failure="invalid unicode")
    passage = passage_of(text)
    return Parsed(passage.thinking, (passage.answer,) if passage.answer else (), passage.failure)


def read_labelled(text: str, labels: Sequence[str], roles: Sequence[str] = (), long: bool = False) -> Parsed:
    """The parts of an answer, each on one line, in the order of `labels`.

    `roles` are regular expressions of what each part is called besides its label; `long` says whether a part may have
    several paragraphs.
    """
    split = answer_of(text)
    if split.failure:
        return Parsed(split.thinking, failure=split.failure)
    if not is_unicode(split.answer):
        return Parsed(failure="invalid unicode")
    texts, failure = _json_parts(split.answer, labels, roles), ""
    body = without_fences(split.answer)
    if not texts:
        texts, failure = _labelled_parts(body, labels, roles, long)
    if not texts and not failure:
        texts = _listed_parts(body, len(labels))
    if failure or not texts:
        refused = is_refusal(split.answer)
        return Parsed(split.thinking, failure=REFUSAL if refused else failure or "missing part")
    named = zip(texts, roles or ["(?!)"] * len(texts), strict=True)
    if any(
        re.fullmatch(rf"(?:the )?(?:{role})(?: (?:query|criteria|features?|evidence))*", part, re.I)
        for part, role in named
    ):
        return Parsed(split.thinking, failure="empty part")
    if any(not part or is_placeholder(part) or is_nothing(part) or is_refusal(part) for part in texts):
        return Parsed(split.thinking, failure="empty part")
    return Parsed(split.thinking, tuple(texts))


def _json_parts(text: str, labels: Sequence[str], roles: Sequence[str]) -> list[str]:
    """The parts from a JSON object with a key for each, or a list of as many texts; [] where there is none."""
    cores = _cores(labels, roles)
    found: list[list[str]] = []
    for value in find_values(text):
        texts = _texts_of(value, cores)
        if texts and len(texts) == len(labels) and texts not in found:
            found.append(texts)
    return found[0] if len(found) == 1 else []


def _texts_of(value: object, cores: Sequence[str]) -> list[str]:
    if isinstance(value, list):
        inner = [_query_in(item) if isinstance(item, dict) else item for item in value]
        texts = [" ".join(item.split()) for item in inner if isinstance(item, str)]
        return texts if len(texts) == len(inner) else []
    if not isinstance(value, dict):
        return []
    by_part = {
        index: item
        for key, item in value.items()
        for index, core in enumerate(cores)
        if isinstance(item, str) and re.fullmatch(core, re.sub(r"[_-]", " ", str(key)), re.IGNORECASE)
    }
    if len(by_part) == len(cores) == len(value):
        return [" ".join(by_part[index].split()) for index in range(len(cores))]
    return _texts_of(next(iter(value.values())), cores) if len(value) == 1 else []


def _query_in(item: Mapping[str, object]) -> object:
    """The query of an object that has it alone, or beside its purpose and the like."""
    named = [value for key, value in item.items() if re.fullmatch(_WORD_OF_NUMBERED, str(key), re.IGNORECASE)]
    return named[0] if len(named) == 1 else next(iter(item.values())) if len(item) == 1 else None


def _cores(labels: Sequence[str], roles: Sequence[str]) -> list[str]:
    """A regular expression of what may stand for each label."""
    cores = []
    for index, label in enumerate(labels):
        numbered = re.fullmatch(r"\D*?(\d+)", label)
        number = rf"(?:{numbered[1]}|{_ORDINALS[index]})" if numbered and index < 5 else numbered[1] if numbered else ""
        words = r"[ _]?".join(map(re.escape, re.split("[ _]", label)))
        ways = [words]
        if numbered:
            ways += [rf"{_WORD_OF_NUMBERED}[ _\t#.°№-]*{number}(?!\d)", rf"(?:the )?{number}(?!\d) {_WORD_OF_NUMBERED}"]
        if roles:
            ways += [
                rf"(?:the )?(?:{roles[index]})(?:[ -]?(?:query|question|hypothesis))?",
                rf"query for (?:{roles[index]})",
            ]
        cores.append(f"(?:{'|'.join(ways)})")
    return cores


def _labelled_parts(text: str, labels: Sequence[str], roles: Sequence[str], long: bool) -> tuple[list[str], str]:
    """The text behind each label, or what is wrong; neither where no label stands in the text."""
    tail = _TAIL.replace("role", "|".join(roles) if roles else r"(?!)")
    other = [rf"{_WORD_OF_NUMBERED}[ _\t#-]*\d{{1,2}}"] if labels[0][-1].isdigit() else []
    marks: list[tuple[int, int, int]] = []
    titles: dict[int, str] = {}
    for cores in ([*_cores(labels, ()), *other], _cores(labels, roles)):
        for index, core in enumerate(cores):
            for mark in re.finditer(f"{_HEAD}{core}{tail}", text, re.IGNORECASE | re.MULTILINE):
                if mark.start() not in titles:
                    marks.append((mark.start(), mark.end(), index))
                    titles[mark.start()] = mark["title"] or ""
        if {index for _, _, index in marks} >= set(range(len(labels))):
            break  # else what the parts are called besides their labels
    marks.sort()
    if not marks:
        return [], ""
    ends = [start for start, _, _ in marks[1:]] + [len(text)]
    bodies = [
        (index, body if _content(body := text[end:stop]) else titles[start])
        for (start, end, index), stop in zip(marks, ends, strict=True)
    ]
    if any(index >= len(labels) for index, _ in bodies):
        return [], "too many parts"
    shapes = [_shape(body) for _, body in bodies[:-1]]
    parts: dict[int, str] = {}
    for position, (index, body) in enumerate(bodies):
        last = position == len(bodies) - 1 and bool(shapes)
        part = _one_part(body, (max(s[0] for s in shapes), max(s[1] for s in shapes)) if last else None, long)
        if parts.get(index, part) != part:
            return [], "repeated part"
        parts[index] = part
    if len(parts) < len(labels):
        return [], "missing part"
    return [parts[index] for index in range(len(labels))], ""


def _content(body: str) -> list[list[str]]:
    """The lines of each paragraph that is no remark."""
    blocks = [[line.strip() for line in block.split("\n")] for block in paragraphs(body)]
    kept = [[line for number, line in enumerate(lines) if number == 0 or not _is_aside(line)] for lines in blocks]
    return [lines for number, lines in enumerate(kept) if number == 0 or not _is_aside(lines[0])]


def _is_aside(line: str) -> bool:
    return (
        is_remark(line.lstrip("-•* "))
        or _ASIDE.match(line) is not None
        or re.fullmatch(r"[*_]*[(（].*[)）][*_]*", line) is not None
    )


def _shape(body: str) -> tuple[int, int]:
    """The numbers of paragraphs, and of lines of the first paragraph."""
    content = _content(body)
    return len(content), len(content[0]) if content else 0


def _one_part(body: str, limits: tuple[int, int] | None, long: bool) -> str:
    """The text of a part on one line. The last part has no more paragraphs and lines than the longest one before it
    (`limits`): what follows is a closing remark."""
    content = _content(body)
    if not long:
        content = [_query_lines(content[0])] if content else []
    if limits is not None:
        content = [lines[: max(1, limits[1])] if number == 0 else lines for number, lines in enumerate(content)]
        content = content[: max(1, limits[0])]
    lines = [line for block in content for line in block]
    part = unquoted(_BOLD_TITLE.sub("", " ".join(" ".join(lines).split())))
    for mark in ("`", "**", '"'):
        if part.count(mark) == 1:  # its pair stands before the label's colon, or was taken for markup of the label
            part = part.removesuffix(mark).removeprefix(mark).strip()
    return part


def _query_lines(lines: Sequence[str]) -> list[str]:
    """The first line, and those that it is continued on."""
    count = 1
    while count < len(lines) and _CONTINUED.search(lines[count - 1]):
        count += 1
    return list(lines[:count])


def _listed_parts(text: str, count: int) -> list[str]:
    """The items of the only list of a text, or the lines after its announcement, where they are `count`; else [].

    What stands before the list must announce it as one of queries: a list may be one of reasons, too.
    """
    numbered, bullets = list(_NUMBERED.finditer(text)), list(_BULLET.finditer(text))
    items: list[str] = []
    start = len(text)
    if numbered:
        if [item[1] for item in numbered] in ([str(n) for n in range(1, count + 1)], list("abcdefghij"[:count])):
            items, start = [item[2] for item in numbered], numbered[0].start()
    elif bullets:
        items, start = [item[1] for item in bullets], bullets[0].start()
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines and is_preamble(lines[0]):
            items, start = [line for line in lines[1:] if not _is_aside(line)], text.find(lines[0]) + len(lines[0])
    before = [line.strip() for line in text[:start].splitlines() if line.strip()]
    if len(items) != count or not (not before or _PLEASANTRY.fullmatch(before[-1]) or _NAMED_LIST.search(before[-1])):
        return []
    return [_one_part(_ITEM_LABEL.sub("", item), None, False) for item in items]
