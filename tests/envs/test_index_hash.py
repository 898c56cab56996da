"""Everything that the files of an index or its rankings depend on is in the index hash; names and places are not."""

import pytest
from querylect.configs.environment import EnvironmentConfig, VectorsConfig
from querylect.data.corpus import Origin
from querylect.envs.index.meta import IndexMeta
from querylect.envs.presets import RetrieverPreset
from querylect.envs.retrievers.open import index_settings

PRESET = RetrieverPreset(name="encoder", kind="dense", trained="A sentence encoder.")
CONFIG = EnvironmentConfig(retriever="a/b", index="here")
OTHER_PRESET = {
    "name": "another", "pooling": "mean", "similarity": "dot", "query_prompt": "query: ",
    "document_prompt": "passage: ", "pair": True, "max_length": 128, "query_max_length": 32, "dtype": "bfloat16",
}  # fmt: skip
SAME_PRESET = {"trained", "model", "query_model", "kind"}


def meta(settings, **changes):
    values = {
        "preset": PRESET, "settings": settings, "dataset": "toy", "licence": "CC0", "corpus_hash": "c", "documents": 4,
        "origin": Origin(size=1, modified=2, fingerprint="o"), "versions": {"numpy": "2"}, "files": {"v.npy": "s"},
    }  # fmt: skip
    return IndexMeta(**(values | changes))


def changed(name, value):
    section, _, field = name.rpartition(".")
    if section:
        return CONFIG.model_copy(update={"vectors": VectorsConfig(**{field: value})})
    return CONFIG.model_copy(update={name: value})


def test_every_field_of_a_preset_is_hashed_but_model_paths_and_descriptions():
    assert RetrieverPreset.model_fields.keys() - OTHER_PRESET.keys() == SAME_PRESET


@pytest.mark.parametrize(("field", "value"), OTHER_PRESET.items(), ids=[*OTHER_PRESET])
def test_another_preset_is_another_index(field, value):
    other = index_settings(CONFIG, PRESET.model_copy(update={field: value}))
    assert meta(other).index_hash != meta(index_settings(CONFIG, PRESET)).index_hash


def test_engine_and_language_of_bm25_weights_corpus_and_files_are_hashed():
    bm25 = PRESET.model_copy(update={"kind": "bm25"})
    configs = [EnvironmentConfig(), EnvironmentConfig(engine="rank_bm25"), EnvironmentConfig(language="german")]
    settings = [index_settings(config, bm25) for config in configs]
    metas = [meta(each) for each in (*settings, index_settings(CONFIG, PRESET, "weights"))]
    metas += [meta(settings[0], corpus_hash="d"), meta(settings[0], files={"v.npy": "t"})]
    assert len({each.index_hash for each in metas}) == len(metas)


def test_the_same_index_of_another_machine_has_the_same_hash():
    settings = index_settings(CONFIG, PRESET)
    moved = CONFIG.model_copy(update={"index": "there", "language": "german", "vectors": VectorsConfig(device="gpu")})
    there = meta(
        index_settings(moved, PRESET.model_copy(update={"model": "/elsewhere"})),
        dataset="copy", licence="", versions={}, origin=Origin(size=1, modified=3, fingerprint="o"),
    )  # fmt: skip
    assert there.index_hash == meta(settings).index_hash
