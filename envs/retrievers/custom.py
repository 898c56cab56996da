"""A custom retriever: one Python file with a class `Retriever`, built from the corpus when it is opened.

The file is executed, so name only files that you would run yourself. Its index holds no files; its settings have the
sha256 of the code, so that rankings of changed code are never confused with earlier ones.
"""

import importlib.util
from pathlib import Path

from ...errors import ConfigError
from ...storage import file_sha256
from ..index.documents import Documents
from ..presets import PYTHON, RetrieverPreset
from .base import Retriever, RetrieverFactory


class Custom(RetrieverFactory):
    """A loaded retriever file; the retriever is built when it is opened."""

    def __init__(self, preset: RetrieverPreset) -> None:
        """Run the file. ConfigError if it has no class `Retriever`."""
        assert preset.model is not None, "a custom preset names its file"
        file = Path(preset.model)
        spec = importlib.util.spec_from_file_location(f"querylect_custom_{file.stem}", file)
        if spec is None or spec.loader is None:
            raise ConfigError(f"env.retriever is '{PYTHON}{file}'; expected a Python file that ends in .py.")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not isinstance(getattr(module, "Retriever", None), type):
            raise ConfigError(
                f"{file} holds no class Retriever. Write one with __init__(documents) and rank(probes, limits): "
                "docs/add-a-retriever.md."
            )
        self._retriever = module.Retriever
        self.preset = preset.model_copy(update={"trained": getattr(module, "TRAINED", preset.trained)})
        self.fingerprint = f"code {file_sha256(file)}"

    def load(self, folder: Path, documents: Documents) -> Retriever:
        """Build the retriever from the corpus."""
        retriever: Retriever = self._retriever([documents.at(position) for position in range(len(documents))])
        return retriever
