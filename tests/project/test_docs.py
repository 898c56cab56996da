"""The pages of docs/: links resolve, quotations match the code, and generated pages are up to date."""

import re
import shlex
from collections import Counter
from functools import cache
from urllib.parse import urlsplit

import pytest
from querylect.cli import app
from querylect.configs import reference
from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError
from querylect.sources import install_command
from typer.main import get_command

from ..pages import DOCS, ROOT

PAGES = sorted(path.name for path in DOCS.glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(DOCS / name for name in PAGES)]
_LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")


def test_the_site_builds_without_a_warning(tmp_path):
    """MkDocs checks every page's links and anchors, and that no page is missing from the navigation."""
    pytest.importorskip("material", reason="the extra docs is not installed: mkdocs-material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    build(config)  # raises Abort where there was a warning
    built = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "own-corpus.html" in built
    assert "fonts.googleapis.com" not in built


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_of_the_repository(text):
    """As GitHub follows them, which MkDocs does not check."""
    for link in _LINK.findall(_FENCED.sub("", text.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            parts = urlsplit(link)
            assert parts.scheme == "https", link
            assert "." in parts.netloc, link
            continue
        path, _, fragment = link.partition("#")
        target = (text.parent / path).resolve() if path else text
        assert target.is_file(), f"{text.name} links to {link}"
        assert target.is_relative_to(ROOT), f"{text.name} links to {link}, which is outside of the repository"
        if fragment:
            assert fragment in _anchors(target), f"{text.name} links to {link}; there are {sorted(_anchors(target))}"


FROM_AN_INDEX = re.compile(r"""querylect\[\w|pip install (?:-\S+ (?:[\w.-]+ )?)*["']?querylect(?![-\w./*])""")


def sources():
    """Every text file of the repository."""
    kinds = {".py", ".md", ".sh", ".yaml", ".toml", ".txt", ".html", ".js", ""}
    folders = [ROOT / name for name in ("docs", "tests", "benchmarks")]
    folders += [path.parent for path in ROOT.glob("*/__init__.py")]
    files = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    return [path for path in files if path.suffix in kinds and path.is_file()]


def test_nothing_tells_to_install_querylect_from_an_index():
    """It is on no index, so anyone could register the name there."""
    assert FROM_AN_INDEX.search("pip install 'querylect'")
    assert FROM_AN_INDEX.search("pip install -c constraints.txt querylect")
    assert not FROM_AN_INDEX.search(install_command("gpu"))
    files = [path for path in sources() if path.name not in ("test_docs.py", "pyproject.toml")]
    assert len(files) > 400
    assert not [path for path in files if FROM_AN_INDEX.search(path.read_text(encoding="utf-8", errors="replace"))]


def test_the_page_of_settings_is_what_its_command_prints():
    assert (DOCS / "config.md").read_text(encoding="utf-8") == reference.page(), "run: make reference"


def test_a_setting_is_described_with_type_bounds_and_default():
    page = reference.page()
    assert "- `port` (whole number ≥ 0 and ≤ 65535, `0`): 0 takes a free port." in page
    assert "- `lora` ([policy.lora](#policylora) or `null`): None trains all weights." in page
    assert "- `folder` (text, *required*): " in page
    entries = [line for line in page.splitlines() if line.startswith("- `")]
    assert len(entries) > 200
    assert [entry for entry in entries if entry.endswith(":")] == []
    headings = re.findall(r"^###? (.*)$", page, re.MULTILINE)
    assert [heading for heading, times in Counter(headings).items() if times > 1] == []


def test_every_command_in_the_texts_exists_with_its_options():
    """Every `querylect …` in code is accepted by the command line of this version."""
    commands = set()
    for text in TEXTS:
        for words in _commands_in(text.read_text(encoding="utf-8")):
            commands.add(_understood(words, text.name))
    assert {"train", "eval", "index build", "data check", "serve", "rewrite", "report"} <= commands


def test_every_setting_that_a_text_changes_exists_and_takes_its_value():
    """Every `section.key=VALUE` in code, one at a time; what it needs beside it stands elsewhere in the text."""
    changes = [(text.name, change) for text in TEXTS for change in _changes_in(text.read_text(encoding="utf-8"))]
    assert len(changes) > 80
    wrong = [f"{name}: {change}: {complaint}" for name, change in changes if (complaint := _complaint(change))]
    beside = re.compile(r"dataset\.path is needed|in mix\.environments")
    assert [message for message in wrong if not beside.search(message)] == []


def _complaint(change):
    try:
        load_config(None, [change])
    except ConfigError as error:
        return str(error)
    return ""


def test_every_call_of_the_service_is_described(small_environment):
    """Every path of its OpenAPI document, with its method, and every field that is asked or answered there."""
    document = create_app(Environment.open(small_environment)).openapi()
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    calls = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    assert len(calls) >= 6
    assert [call for call in calls if f"`{call}" not in page] == []
    fields = {name for schema in document["components"]["schemas"].values() for name in schema.get("properties", {})}
    assert [name for name in sorted(fields) if not re.search(rf"\b{name}\b", page)] == []


def _anchors(path):
    counts = Counter()
    anchors = set()
    for heading in re.findall(r"^#+ (.*)$", _FENCED.sub("", path.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("**", "")
        slug = reference.anchor(plain)
        anchors.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return anchors


def _commands_in(text):
    """The words of every `querylect …` in shell blocks and in inline code."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in ("sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from _calls(line.removeprefix("$ "))
    for code in _CODE.findall(_FENCED.sub("", text)):
        yield from _calls(code.strip("`"))
    indented = re.sub(r"\\\n *", " ", _FENCED.sub("", text))
    for line in re.findall(r"^ {4}(.*)$", indented, re.MULTILINE):
        yield from _calls(line.strip())


def _changes_in(text):
    """The words of code that change a setting of a run; `bash` marks blocks that a test runs as they stand."""
    sections = "|".join(name for name in RunConfig.model_fields if name not in ("name", "output", "seed"))
    code = [block for _, block in re.findall(r"^```(sh|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    code += [code_span.strip("`") for code_span in _CODE.findall(_FENCED.sub("", text))]
    code += re.findall(r"^ {4}.*$", _FENCED.sub("", text), re.MULTILINE)
    pattern = re.compile(rf"(?<![\w.])((?:{sections})\.[a-z_.]+)=('[^']*'|\"[^\"]*\"|[^\s`;,)\"']+)")
    for name, value in pattern.findall("\n".join(code)):
        yield f"{name}={value.strip(chr(39))}"


def _calls(line):
    match = re.search(r"(?:^|bin/|&& |-m |\| )querylect ([a-z].*)$", line)
    if match:
        command = re.split(r"\s[#|>&]|[0-9]>", match[1])[0]
        try:
            yield shlex.split(command)
        except ValueError:
            yield command.split()


@cache
def _command_line():
    return get_command(app)


def _understood(words, page):
    group, path = _command_line(), []
    while hasattr(group, "commands") and words and words[0] in group.commands:
        path.append(words[0])
        group, words = group.commands[words[0]], words[1:]
    invocation = f"{page}: querylect {' '.join([*path, *words])}"
    assert path, invocation
    options = {name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0] in options, invocation
    return " ".join(path)
