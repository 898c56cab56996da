"""A custom retriever: one Python file with a class `Retriever`, built from the corpus when it is opened.

The file is executed, so name only files that you would run yourself. Its index holds no files; its settings have the
sha256 of the code, so that rankings of changed code are never confused with earlier ones.
"""

import importlib.util
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...configs.environment import EnvironmentConfig
from ...errors import ConfigError, in_one_line
from ...storage import file_sha256
from ..index import Documents
from ..presets import PYTHON, RetrieverPreset
from .base import Retriever, RetrieverFactory, SearchedIndex


class CustomFactory(RetrieverFactory):
    """A loaded retriever file; the retriever is built when it is opened."""

    def __init__(
        self, preset: RetrieverPreset, config: EnvironmentConfig, members: Sequence[SearchedIndex] = ()
    ) -> None:
        """Run the file. ConfigError if that fails, or it has no class `Retriever`."""
        assert preset.model is not None, "a custom preset names its file"
        self._file = file = Path(preset.model)
        spec = importlib.util.spec_from_file_location(f"querylect_custom_{file.stem}", file)
        if spec is None or spec.loader is None:
            raise ConfigError(f"env.retriever is '{PYTHON}{file}'; expected a Python file that ends in .py.")
        module = importlib.util.module_from_spec(spec)
        with self._running():
            spec.loader.exec_module(module)
        if not isinstance(getattr(module, "Retriever", None), type):
            raise ConfigError(
                f"{file} holds no class Retriever. Write one with __init__(documents) and rank(probes, limits): "
                "docs/add-a-retriever.md."
            )
        self._retriever: type[Retriever] = type("Retriever", (module.Retriever, Retriever), {})
        trained = getattr(module, "TRAINED", preset.trained)
        super().__init__(preset.model_copy(update={"trained": trained}), config, members)

    @property
    def fingerprint(self) -> str | None:
        """sha256 of the code."""
        return f"code {file_sha256(self._file)}"

    def load(self, folder: Path, documents: Documents) -> Retriever:
        """Build the retriever from the corpus. ConfigError if that fails."""
        contents = [documents.at(position) for position in range(len(documents))]
        with self._running():
            return self._retriever(contents)  # type: ignore[call-arg]

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Convert what the file's code raises to ConfigError, with its line."""
        try:
            yield
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            file = self._file.resolve()
            lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file]
            position = f"; line {lines[-1]}" if lines else ""
            raise ConfigError(
                f"{self._file} cannot be run ({type(error).__name__}: {in_one_line(error)}{position})."
            ) from error
