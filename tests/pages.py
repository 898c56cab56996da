"""The pages of docs/ as tests read them: their code blocks, in order."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language and its text."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that the block is to be written to: its first line is `# NAME` or `# NAME: what it is`."""
        found = re.match(r"# ([\w-]+\.(?:py|yaml))\b", self.text)
        return found[1] if found else None


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page."""
    return [Block(*found) for found in _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))]
