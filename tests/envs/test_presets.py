"""Presets: what a retriever name means, and what `env.recipe` may change of it."""

import pytest
from querylect.configs.environment import EnvironmentConfig, RecipeConfig
from querylect.envs.presets import PRESETS, find_preset, preset_of
from querylect.errors import ConfigError

from ..raising import refused


def configured(retriever, model=None, **changes):
    return preset_of(EnvironmentConfig(retriever=retriever, model=model, recipe=RecipeConfig(**changes)))


def test_a_model_or_a_recipe_replaces_what_it_names_and_nothing_else():
    preset = find_preset("Contriever", "package:some/model")
    assert preset == PRESETS["contriever"].model_copy(update={"model": "package:some/model"})
    assert configured("bm25", name="words") == PRESETS["bm25"].model_copy(update={"name": "words"})
    preset = configured("medcpt", "my/articles", query_model="my/queries")
    assert (preset.model, preset.query_model) == ("my/articles", "my/queries")


def test_a_name_or_an_override_that_fits_no_retriever_is_refused():
    with refused(ConfigError, "'contreiver'", "contriever"):
        find_preset("contreiver")
    with refused(ConfigError, "env.model", "facebook/contriever", "bm25"):
        find_preset("bm25", "facebook/contriever")
    with refused(ConfigError, "env.recipe.pooling", "bm25"):
        configured("bm25", name="words", pooling="cls")
    with refused(ConfigError, "'medcpt'", "env.recipe.query_model"):
        preset_of(EnvironmentConfig(retriever="medcpt", model="my/articles"))


@pytest.mark.parametrize("name", ["intfloat/e5-base-v2", "package:encoder/model"])
def test_any_other_model_is_a_generic_preset_that_asks_the_model(name):
    preset = find_preset(name)
    assert (preset.name, preset.kind, preset.model) == (name, "dense", name)
    assert preset.pooling is preset.similarity is preset.query_prompt is preset.document_prompt is None
