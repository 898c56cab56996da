"""The pages of docs/ as tests read them: their code blocks, in order."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language and its text."""

    language: str
    text: str
    section: str = ""
    """The heading above it, without its `#`s."""

    @property
    def file(self) -> str | None:
        """The file that the block is to be written to: its first line is `# NAME` or `# NAME: …` (`%` in TeX)."""
        match = re.match(r"[#%] ([\w-]+\.(?:py|yaml|tex))\b", self.text)
        return match[1] if match else None


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    fenced = list(_BLOCK.finditer(text))
    code = [range(*block.span()) for block in fenced]
    headings = [heading for heading in _HEADING.finditer(text) if not any(heading.start() in span for span in code)]
    return [Block(block[1], block[2], _section(headings, block)) for block in fenced]


def _section(headings: list[re.Match], block: re.Match) -> str:
    """The last heading above a block."""
    return next((heading[1] for heading in reversed(headings) if heading.start() < block.start()), "")
