"""What a run folder from elsewhere may not do without the user's flag: run code, contact hosts, write or read
other files.

A folder is the user's own if `querylect train` made it for this user at this path. That is noted in the user's state
folder, not in the run folder, whose content its sender controls. The note no longer applies if config.yaml is changed,
the folder is moved, or another run (with another id in run.json) takes its path. All other folders are treated as data:
`untrusted_in` lists their settings that would do more.

Settings are judged by their values, so a new setting needs no entry here.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ..errors import ConfigError
from ..storage import parse_json
from .environment import ClientConfig, MilvusConfig, RemoteConfig
from .llm import LlmConfig
from .schema import VllmServerConfig

log = logging.getLogger(__name__)

FLAG = "--trust (trust=True in Python)"

CODE, HOST, VARIABLE = "runs code", "contacts a host", "reads an environment variable"
WRITES, OUTSIDE = "writes a file", "leaves the folder"

_VARIABLES = {
    "token_env": {ClientConfig().token_env, MilvusConfig().token_env},
    "api_key_env": {LlmConfig().api_key_env},
    "auth_env": {RemoteConfig.model_fields["auth_env"].default},
}
"""Settings that name environment variables, with the names that every folder may use."""

_HOSTS = {"url", "urls", "base_url"}
_NO_HOSTS = {"client.urls": "local", "rollout.server.base_url": VllmServerConfig().base_url}
"""Values that contact nothing by themselves: a vLLM server is asked only with `rollout.engine`."""

_WRITTEN = {"cache": LlmConfig().cache, "uri": MilvusConfig().uri, "weights_folder": None}
"""Settings that name a file to write, with the value that every folder may use: paths to read lead into the working
folder, where an unknown name is only missing, but any file there could be written."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class UntrustedSetting:
    """A setting that runs code or reaches beyond its run folder, or a link out of the folder."""

    key: str
    """Dotted name; for a link its path in the folder."""
    value: Any
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value} ({self.effect})"


def note_own_run(run: Path) -> None:
    """Note that the user made this run folder, which has its run.json and config.yaml. Only logs if the state folder
    cannot be written."""
    note = _note(run)
    try:
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note.write_text(f"{run.resolve()}\n", encoding="utf-8")
    except OSError as error:
        log.warning("%s cannot be noted as your own (%s): commands may ask for --trust", run, error)


def is_own_run(run: Path) -> bool:
    """Whether the user made this run folder, at this path, with the id of its run.json and with this config.yaml.

    False for a folder without an id, as those of earlier versions are, whatever was noted for its path.
    """
    try:
        return _note(run).is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _note(run: Path) -> Path:
    """The file that notes a run as the user's own. Raises OSError, ValueError, KeyError or TypeError for a folder
    without a config or an id."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    run_id = str(parse_json((run / "run.json").read_bytes())["id"])
    content = (os.fsencode(run.resolve()), run_id.encode(), (run / "config.yaml").read_bytes())
    return state / "querylect" / "runs" / hashlib.sha256(b"\0".join(content)).hexdigest()


def untrusted_in(values: Any, folder: Path, key: str = "") -> Iterator[UntrustedSetting]:
    """The settings of `folder`, given as plain data, that run code, contact a host, read a variable, write a file
    that is not in it, or lead outside."""
    name = key.rpartition(".")[2]
    if isinstance(values, Mapping):
        for inner, value in values.items():
            yield from untrusted_in(value, folder, f"{key}.{inner}" if key else str(inner))
    elif name in _HOSTS:
        harmless = next((value for setting, value in _NO_HOSTS.items() if key.endswith(setting)), None)
        if values not in (None, harmless):
            yield UntrustedSetting(key, values, HOST)
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for position, value in enumerate(values):
            yield from untrusted_in(value, folder, f"{key}.{position}")
    elif name == "trust_remote_code" and values:
        yield UntrustedSetting(key, values, CODE)
    elif name in _VARIABLES:
        if values not in _VARIABLES[name]:
            yield UntrustedSetting(key, values, VARIABLE)
    elif name in _WRITTEN and values not in (None, _WRITTEN[name]) and not _is_inside(values, folder):
        yield UntrustedSetting(key, values, WRITES)
    elif isinstance(values, str) and (effect := _effect(values, folder)):
        yield UntrustedSetting(key, values, effect)


def _effect(text: str, folder: Path) -> str | None:
    if text.startswith("python:"):
        return CODE
    if text == "vllm_server" or _URL.match(text):
        return HOST
    if text.startswith("~"):
        return OUTSIDE
    if text.startswith("/") or ".." in PurePath(text).parts:
        return None if _is_inside(text, folder) else OUTSIDE
    return None


def _is_inside(path: str | Path, folder: Path) -> bool:
    try:
        return Path(os.path.realpath(path)).is_relative_to(folder.resolve())
    except ValueError:  # a null character
        return False


def links_outside(folder: Path, *names: str) -> Iterator[UntrustedSetting]:
    """Symbolic links in a folder, or only among these files and subfolders of it, that lead out of it: what is written
    there would change other files."""
    roots = [folder / name for name in names]
    paths = [path for root in roots if not root.is_symlink() for path in root.rglob("*")]
    for path in sorted([*roots, *paths] if names else folder.rglob("*")):
        if path.is_symlink() and not _is_inside(path, folder):
            yield UntrustedSetting(str(path.relative_to(folder)), os.readlink(path), OUTSIDE)


def refuse_untrusted(name: str, untrusted: Sequence[UntrustedSetting]) -> None:
    """Raise ConfigError if there are any."""
    if untrusted:
        raise ConfigError(
            f"{name} was not trained here, and it asks for more than its own data: {'; '.join(map(str, untrusted))}. "
            f"Set these yourself (key=value), or, if you trust its author, use them with {FLAG}."
        )
