"""Reads the answers of prompted models, which were never trained on the form that a prompt asks for.

The parsers of a policy in training are strict (`parse.py`, `parts.py`): rambling earns no format reward there. Here,
what chat models write around an answer is skipped: preambles, code fences, numbering, bold, titles, boxes, drafts,
closing remarks; labelled parts may also come as JSON, as a table, in tags, as a list or on one line. What could mean
two things fails instead of being guessed at: a part that is missing, there twice with other words, or one too many.
"""

import re
from collections.abc import Sequence

from ..envs.plan import is_unicode
from ..llms.lines import is_placeholder
from ..llms.markup_answers import boxed, final_part, unboxed
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
from .prompted_values import LETTERS, NAMES_QUERIES, PART_NAME, ROMAN, is_name, names_of_parts, parts_in_values

VERSION = 3
"""Raise it when an answer is read in another way: answers that were read before are asked for again."""

_REWRITE = re.compile(r"<\s*rewrite\s*>(.*?)<\s*/\s*rewrite\s*>", re.IGNORECASE | re.DOTALL)
_REWRITE_TAG = re.compile(r"<\s*/?\s*rewrite\s*>", re.IGNORECASE)
_REWRITE_LINE = re.compile(
    r"^[ \t>#*_-]*(?:re-?written |final |search |the )*(?:rewrite|query|rewritten question)[*_ ]*[:：][*_ \t]*(\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_HEAD = r"^[^\w\n<(\[]{0,8}(?:[(\[]?\d{1,2}[.):\]][ \t]*)?[*_`\"“ \t]*"
_TAIL = (
    r"[*_`\"”]*[ \t]*(?:[(（\[][^()（）\[\]\n]{0,80}[)）\]])?[*_` \t]*"
    r"(?:(?:[-–—:：][ \t]*)?[*_]*(?:role)(?: (?:query|question|evidence|criteria|features?|facts?|hypothesis))*"
    r"(?=[*_`\"” \t]*(?:[:：]|[-–—]+[ \t])))?"
    r"(?:[*_`\"” \t]*(?:[:：]|(?:[.)]|[-–—=→>]+)(?=[ \t]))[*_` \t]*"
    r"(?P<title>[*_]*(?:role)\b[^:：\n]{0,60}$)?|[*_` \t]*$)"
)
"""What follows a label; `title` is a description of the part on the label's line, if the part is on the next one."""
_MARKER = r"[(\[]?(?:(?:\d{1,2}(?=[.):、\]])|[a-j](?=\))|(?i:[ivx]{1,4}(?=[.)](?!\w))))[.):、\]])"
_NUMBERED = re.compile(
    rf"^[ \t>*_-]*({_MARKER})[*_]*[ \t]*(.*(?:\n(?![ \t>*_-]*{_MARKER})\S.*)*)",
    re.MULTILINE,
)
_SEPARATOR = r"[ \t]*(?:[;；→⇒|]|[-=]>)[ \t]*"
_NUMBERED_WORD = rf"[*_]*{PART_NAME}[ _\t]*(?:\d{{1,2}}|[ivx]+)\b"
_BEGINS_WITH_LABEL = re.compile(rf"^[^\w\n]{{0,8}}(?:{_NUMBERED_WORD}|{_MARKER}[ \t]).*$", re.IGNORECASE | re.MULTILINE)
_BEFORE_LABEL = re.compile(
    rf"(?<=\S)(?:{_SEPARATOR}(?={_MARKER}[ \t])|(?:{_SEPARATOR}|[,.]?[ \t]+)(?:(?:and|then)[ \t]+)?"
    rf"(?={_NUMBERED_WORD}[^:：\n]{{0,30}}[:：]))",
    re.IGNORECASE,
)
"""What separates a part from the next one on the same line."""
_IN_BRACKETS = r"[*_]*[\[(（<{]([^\])）>}\n]{1,40})[\])）>}][*_]*"
_LEADING_BRACKETS = re.compile(rf"{_IN_BRACKETS}[ \t]+(?!(?:AND|OR|NOT)\b|[&|+])")
_TRAILING_BRACKETS = re.compile(rf"[ \t]+{_IN_BRACKETS}$")
_BRACKETED_LABEL = re.compile(rf"^([ \t>*_-]*(?:{_MARKER}[*_]*)?[ \t]*){_IN_BRACKETS}(?=[ \t]+\S)", re.MULTILINE)
_ITEM_LABEL = re.compile(rf"^[*_]*{PART_NAME}[*_]*[:：][*_]*[ \t]*", re.IGNORECASE)
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
    final, _ = final_part(split.answer)
    answer = unboxed(final if _REWRITE.search(final) else split.answer)
    bodies = [" ".join(body.split()) if "\n" in body else body.strip() for body in _REWRITE.findall(answer)]
    rewrites = tuple(dict.fromkeys(body for body in bodies if body not in placeholders))
    if not bodies and not _REWRITE_TAG.search(answer):
        if is_refusal(answer):
            return Parsed(split.thinking, failure=REFUSAL)
        lines = {unquoted(line) for line in _REWRITE_LINE.findall(without_fences(answer))}
        lines = lines or {box for box in boxed(split.answer) if len(box) > 1}
        rewrites = tuple(lines) if len(lines) == 1 else ()
    if any(_REWRITE_TAG.search(body) for body in bodies) or len(bodies) * 2 < len(_REWRITE_TAG.findall(answer)):
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
    passage = passage_of(unboxed(text))
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
    final, decides = final_part(split.answer)
    texts, failure = _parts_of(final, labels, roles, long) if final else ([], "")
    if not (final and decides) and (failure or not texts):
        texts, failure = _parts_of(split.answer, labels, roles, long)
    if failure or not texts:
        refused = is_refusal(split.answer)
        return Parsed(split.thinking, failure=REFUSAL if refused else failure or "missing part")
    if any(
        not part or is_placeholder(part) or is_nothing(part) or is_refusal(part) or _is_role(part, roles)
        for part in texts
    ):
        return Parsed(split.thinking, failure="empty part")
    return Parsed(split.thinking, tuple(texts))


def _parts_of(text: str, labels: Sequence[str], roles: Sequence[str], long: bool) -> tuple[list[str], str]:
    """The parts in any notation, or what is wrong; neither where there is no part."""
    text = unboxed(text)
    cores = names_of_parts(labels, roles)
    texts = parts_in_values(text, cores)
    if texts:
        return texts, ""
    body = _BRACKETED_LABEL.sub(
        lambda mark: f"{mark[1]}{mark[2]}:" if not mark[2].isdigit() and is_name(mark[2], cores) else mark[0],
        without_fences(text),
    )
    if not long:
        body = _BEGINS_WITH_LABEL.sub(lambda line: _BEFORE_LABEL.sub("\n", line[0]), body)
    texts, failure = _labelled_parts(body, labels, roles, long)
    if not texts and not failure:
        texts = _listed_parts(body, len(labels), long)
    return _without_brackets(texts, roles), failure


def _without_brackets(texts: Sequence[str], roles: Sequence[str]) -> list[str]:
    """The parts without bracketed labels: a role before or after a part, or any bracketed text before all parts (unless
    it belongs to a Boolean query)."""
    leading = [_LEADING_BRACKETS.match(text) for text in texts]
    shared = len(texts) > 1 and all(mark and mark[0].lstrip("*_")[0] in "[<{" for mark in leading)
    bare = [
        text[mark.end() :] if mark and (shared or _is_role(mark[1], roles)) else text
        for text, mark in zip(texts, leading, strict=True)
    ]
    trailing = [_TRAILING_BRACKETS.search(text) for text in bare]
    return [
        text[: mark.start()] if mark and _is_role(mark[1], roles) else text
        for text, mark in zip(bare, trailing, strict=True)
    ]


def _is_role(text: str, roles: Sequence[str]) -> bool:
    """Whether a text only says what a part is for."""
    names = "|".join(roles) or "(?!)"
    return re.fullmatch(rf"(?:the )?(?:{names})(?: (?:query|criteria|features?|evidence))*", text, re.I) is not None


def _labelled_parts(text: str, labels: Sequence[str], roles: Sequence[str], long: bool) -> tuple[list[str], str]:
    """The text after each label, or what is wrong; neither if the text contains no label."""
    tail = _TAIL.replace("role", "|".join(roles) if roles else r"(?!)")
    other = [rf"{PART_NAME}[ _\t#-]*\d{{1,2}}"] if any(label[-1].isdigit() for label in labels) else []
    marks: list[tuple[int, int, int]] = []
    titles: dict[int, str] = {}
    for cores in ([*names_of_parts(labels, ()), *other], names_of_parts(labels, roles)):
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
    cleaned = [[line for number, line in enumerate(lines) if number == 0 or not _is_aside(line)] for lines in blocks]
    return [lines for number, lines in enumerate(cleaned) if number == 0 or not _is_aside(lines[0])]


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
    part = unquoted(re.sub(r"(?<=[\"”])[.;,]$", "", _BOLD_TITLE.sub("", " ".join(" ".join(lines).split()))))
    for mark in ("`", "**", '"'):
        if part.count(mark) == 1:  # its pair is before the label's colon, or was read as markup of the label
            part = part.removesuffix(mark).removeprefix(mark).strip()
    return part


def _query_lines(lines: Sequence[str]) -> list[str]:
    """The first line, and those that it is continued on."""
    count = 1
    while count < len(lines) and _CONTINUED.search(lines[count - 1]):
        count += 1
    return list(lines[:count])


def _listed_parts(text: str, count: int, long: bool) -> list[str]:
    """The items of the only list of a text, or the lines after its announcement, where they are `count`; else [].

    What stands before the list must announce it as one of queries: a list may be one of reasons, too.
    """
    numbered, bullets = list(_NUMBERED.finditer(text)), list(_BULLET.finditer(text))
    items: list[str] = []
    start = len(text)
    if numbered:
        order = [re.sub(r"\W", "", item[1]).lower() for item in numbered]
        if order in ([str(n) for n in range(1, count + 1)], list(LETTERS[:count]), list(ROMAN[:count])):
            items, start = [item[2] for item in numbered], numbered[0].start()
    elif bullets:
        items, start = [item[1] for item in bullets], bullets[0].start()
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        rest = [line for line in lines[1:] if not _is_aside(line)] if lines and is_preamble(lines[0]) else lines
        if len(rest) == 1 and not long:
            items, start = _on_one_line(rest[0], announced=rest != lines), text.rfind(rest[0])
        elif rest != lines:
            items, start = rest, text.find(lines[0]) + len(lines[0])
    before = [line.strip() for line in text[:start].splitlines() if line.strip()]
    if len(items) != count or not (not before or _PLEASANTRY.fullmatch(before[-1]) or NAMES_QUERIES.search(before[-1])):
        return []
    return [_one_part(_ITEM_LABEL.sub("", item), None, False) for item in items]


def _on_one_line(line: str, announced: bool) -> list[str]:
    """The items of a line such as "Queries: a; b; c". Without an announcement, an arrow may join steps of a thought,
    and a full stop ends a sentence: neither separates queries then."""
    head, colon, rest = line.partition(": ")
    if colon and NAMES_QUERIES.search(head):
        announced, line = True, rest
    elif colon or (line.endswith(".") and not announced):
        return []
    return re.split(_SEPARATOR if announced else "[;；]", line)
