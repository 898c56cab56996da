"""What MkDocs does not know: a page may link to a file of the repository, as `../configs/demo.yaml`.

On GitHub such a link works as it stands. The site gets a copy of the file, as text, under files/. A file that is not
there is a warning, and warnings end `make docs`.
"""

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.querylect")

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\(\.\./([^)#\s]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point every link to a file of the repository at the site's copy of it, and add the copy."""

    def copied(link: re.Match[str]) -> str:
        source = ROOT / link[1]
        if not source.is_file():
            log.warning("%s links to ../%s, and the repository has no such file", page.file.src_uri, link[1])
            return link[0]
        uri = f"files/{link[1]}.txt"
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, content=source.read_text(encoding="utf-8")))
        return f"]({uri})"

    return _LINK.sub(copied, markdown)
