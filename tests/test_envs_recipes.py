"""Recipes: what a retriever name means."""

import pytest
from pydantic import ValidationError
from querylect.envs.recipes import RECIPES, RetrieverRecipe, find_recipe
from querylect.errors import ConfigError


def test_built_in_recipes_say_what_their_model_cards_say():
    facts = {
        name: (recipe.model, recipe.pooling, recipe.similarity, recipe.padding_side) for name, recipe in RECIPES.items()
    }
    assert facts == {
        "bm25": (None, None, None, None),
        "all-minilm-l6-v2": ("sentence-transformers/all-MiniLM-L6-v2", "mean", "cos", None),
        "contriever": ("facebook/contriever", "mean", "dot", None),
        "qwen3-embedding-0.6b": ("Qwen/Qwen3-Embedding-0.6B", "lasttoken", "cos", "left"),
    }
    assert RECIPES["qwen3-embedding-0.6b"].query_template == (
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:{text}"
    )
    assert all(recipe.document_template == "{text}" for recipe in RECIPES.values())


def test_a_model_replaces_the_encoder_and_nothing_else():
    recipe = find_recipe("Contriever", "package:some/model")
    assert recipe == RECIPES["contriever"].model_copy(update={"model": "package:some/model"})


def test_a_misspelt_name_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'contreiver'.*Did you mean 'contriever'"):
        find_recipe("contreiver")


def test_bm25_takes_no_model():
    with pytest.raises(ConfigError, match="bm25 has no model"):
        find_recipe("bm25", "facebook/contriever")


@pytest.mark.parametrize("name", ["BAAI/bge-small-en-v1.5", "package:encoder/model"])
def test_any_other_model_is_a_generic_recipe_that_asks_the_model(name):
    recipe = find_recipe(name)
    assert (recipe.name, recipe.kind, recipe.model) == (name, "dense", name)
    assert recipe.pooling is recipe.similarity is recipe.query_template is recipe.document_template is None


def test_a_folder_is_a_generic_recipe_called_like_the_folder(tmp_path):
    folder = tmp_path / "my-encoder"
    folder.mkdir()
    recipe = find_recipe(str(folder))
    assert (recipe.name, recipe.model) == ("my-encoder", str(folder))


@pytest.mark.parametrize("template", ["query: ", "{text} {text}"])
def test_a_template_must_take_the_text_once(template):
    with pytest.raises(ValidationError, match="exactly once"):
        RetrieverRecipe(name="x", kind="dense", trained="", query_template=template)
