"""Everything that the files of an index or its rankings depend on is in the index hash; names and places are not."""

import pytest
from querylect.configs.environment import VectorsConfig
from querylect.data.corpus import Origin
from querylect.envs.index.manifest import FileEntry, Manifest, VectorStore
from querylect.envs.recipes import RetrieverRecipe

VECTORS = VectorStore(dimension=384, dtype="float32", search="flat")
RECIPE = RetrieverRecipe(name="encoder", kind="dense", trained="A sentence encoder.")
MANIFEST = Manifest(
    recipe=RECIPE,
    engine="bm25s",
    model_fingerprint="f",
    vectors=VECTORS,
    dataset="toy",
    licence="CC0",
    corpus_hash="c",
    documents=4,
    origin=Origin(size=1, modified=2, fingerprint="o"),
    versions={"numpy": "2"},
    files={"vectors.npy": FileEntry(sha256="s", size=9)},
)
OTHER = {
    "recipe": RECIPE.model_copy(update={"name": "another"}),
    "engine": "rank_bm25",
    "model_fingerprint": "g",
    "vectors": None,
    "corpus_hash": "d",
    "files": {"vectors.npy": FileEntry(sha256="t", size=9)},
}
OTHER_VECTORS = {
    "dimension": 768, "dtype": "float16", "search": "hnsw",
}  # fmt: skip
OTHER_RECIPE = {
    "name": "another", "kind": "custom", "pooling": "mean", "similarity": "dot", "instruction": "Find it.",
    "query_template": "query: {text}", "document_template": "passage: {text}", "pair": True, "max_length": 128,
    "query_max_length": 32, "dtype": "bfloat16",
}  # fmt: skip
SEARCH_TIME = {"device"}
"""Settings of vectors that no file depends on; they are in the environment's settings hash."""


def test_every_field_of_a_manifest_is_hashed_or_describes_only_where_it_came_from():
    assert Manifest.model_fields.keys() - OTHER.keys() == {
        "format", "dataset", "licence", "documents", "origin", "versions",
    }  # fmt: skip


def test_vector_settings_are_in_the_manifest_or_concern_the_search_alone():
    assert VectorsConfig.model_fields.keys() - SEARCH_TIME == VectorStore.model_fields.keys() - {"dimension"}
    assert VectorStore.model_fields.keys() == OTHER_VECTORS.keys()


def test_every_field_of_a_recipe_is_hashed_but_model_paths_and_descriptions():
    assert RetrieverRecipe.model_fields.keys() - OTHER_RECIPE.keys() == {"model", "query_model", "trained"}


CHANGES = [
    *OTHER.items(),
    *(("vectors", VECTORS.model_copy(update={field: value})) for field, value in OTHER_VECTORS.items()),
    *(("recipe", RECIPE.model_copy(update={field: value})) for field, value in OTHER_RECIPE.items()),
]


@pytest.mark.parametrize(("field", "value"), CHANGES, ids=[*OTHER, *OTHER_VECTORS, *OTHER_RECIPE])
def test_another_content_is_another_index(field, value):
    assert MANIFEST.model_copy(update={field: value}).index_hash != MANIFEST.index_hash


def test_the_same_index_of_another_machine_has_the_same_hash():
    moved = {
        "dataset": "copy", "licence": "", "versions": {}, "recipe": RECIPE.model_copy(update={"model": "/elsewhere"}),
        "origin": Origin(size=1, modified=3, fingerprint="o"),
    }  # fmt: skip
    assert MANIFEST.model_copy(update=moved).index_hash == MANIFEST.index_hash
