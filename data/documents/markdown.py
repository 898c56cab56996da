"""Splits Markdown at its headings. Links and images are reduced to their texts; everything else stays as it is."""

import re
from dataclasses import dataclass

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_SETEXT = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])")
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n(?:---|\.\.\.)\n", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
SEPARATOR = " > "
"""Joins the headings above a section."""


@dataclass(frozen=True, slots=True)
class HeadedText:
    """A text and the headings above it, outermost first, joined by `SEPARATOR`."""

    heading: str
    text: str


def split_markdown(markdown: str) -> tuple[str, list[HeadedText]]:
    """The title, "" without one, and the sections.

    The title is that of the front matter, else the first heading if it is of level 1; as the title it is no part of the
    headings of sections.
    """
    title = ""
    if front := _FRONT_MATTER.match(markdown):
        markdown = markdown[front.end() :]
        if match := _FRONT_TITLE.search(front[1]):
            title = match[1].strip().strip("\"'")
    sections: list[HeadedText] = []
    levels: dict[int, str] = {}
    lines: list[str] = []
    fence = ""

    def close() -> None:
        text = "\n".join(lines).strip()
        if text:
            path = [heading for _, heading in sorted(levels.items())]
            sections.append(HeadedText(SEPARATOR.join(path[path[:1] == [title] :]), text))
        lines.clear()

    for line in markdown.splitlines():
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            lines.append(line)
            continue
        heading = None if fence else _heading(line, lines)
        if heading is None:
            lines.append(line if fence else _LINK.sub(r"\1", line))
            continue
        level, text = heading
        if not title and level == 1 and not levels:
            title = text
        close()
        levels = {outer: name for outer, name in levels.items() if outer < level} | ({level: text} if text else {})
    close()
    return title, sections


def _heading(line: str, preceding: list[str]) -> tuple[int, str] | None:
    """Level and text of a heading that ends with this line; that of an underlined one is taken out of `preceding`."""
    if atx := _ATX.match(line):
        return len(atx[1]), _LINK.sub(r"\1", atx[2] or "").strip()
    if (
        (underline := _SETEXT.match(line))
        and preceding
        and preceding[-1].strip()
        and (len(preceding) < 2 or not preceding[-2].strip())
    ):
        return (1 if underline[1][0] == "=" else 2), preceding.pop().strip()
    return None
