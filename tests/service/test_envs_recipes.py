"""Recipes: what a retriever name means, and what `env.recipe` may change of it."""

import pytest
from querylect.configs.environment import EnvironmentConfig, RecipeConfig
from querylect.data.types import Document
from querylect.envs.recipes import RECIPES, find_recipe, recipe_of
from querylect.errors import ConfigError

from ..raising import refused


def configured(retriever, model=None, **changes):
    return recipe_of(EnvironmentConfig(retriever=retriever, model=model, recipe=RecipeConfig(**changes)))


def test_built_in_recipes_say_what_their_model_cards_say():
    assert RECIPES["qwen3-embedding-0.6b"].query_text("fever") == (
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:fever"
    )
    assert RECIPES["bge-base-en-v1.5"].query_text("fever") == (
        "Represent this sentence for searching relevant passages: fever"
    )
    assert all(recipe.document_template == "{text}" for recipe in RECIPES.values())


def test_a_model_replaces_the_encoder_and_nothing_else():
    recipe = find_recipe("Contriever", "package:some/model")
    assert recipe == RECIPES["contriever"].model_copy(update={"model": "package:some/model"})


def test_an_unknown_name_is_refused():
    with refused(ConfigError, "'contreiver'", "contriever"):
        find_recipe("contreiver")


def test_bm25_takes_no_model():
    with refused(ConfigError, "env.model", "facebook/contriever", "bm25"):
        find_recipe("bm25", "facebook/contriever")
    with refused(ConfigError, "env.recipe.pooling", "bm25"):
        configured("bm25", name="words", pooling="cls")
    with refused(ConfigError, "env.recipe.dtype", "bm25"):
        configured("bm25", dtype="bfloat16")
    assert configured("bm25", name="words").name == "words"


@pytest.mark.parametrize("name", ["intfloat/e5-base-v2", "package:encoder/model"])
def test_any_other_model_is_a_generic_recipe_that_asks_the_model(name):
    recipe = find_recipe(name)
    assert (recipe.name, recipe.kind, recipe.model) == (name, "dense", name)
    assert recipe.pooling is recipe.similarity is recipe.query_template is recipe.document_template is None


def test_the_recipe_block_changes_what_it_names_and_nothing_else():
    built_in = RECIPES["qwen3-embedding-0.6b"]
    recipe = configured("qwen3-embedding-0.6b", instruction="Find the clinical term", max_length=128)
    assert recipe == built_in.model_copy(update={"instruction": "Find the clinical term", "max_length": 128})
    assert recipe.query_text("fever") == "Instruct: Find the clinical term\nQuery:fever"
    assert recipe_of(EnvironmentConfig(retriever="contriever")) == RECIPES["contriever"]


def test_a_template_without_a_place_for_the_instruction_drops_it():
    recipe = configured("bge-small-en-v1.5", query_template="query: {text}")
    assert (recipe.instruction, recipe.query_text("fever")) == (None, "query: fever")


def test_an_instruction_without_a_place_stands_before_the_query():
    assert configured("a/b", instruction="query: ").query_text("fever") == "query: fever"
    assert configured("contriever", instruction="query: ").query_text("fever") == "query: fever"


def test_a_document_is_wrapped_whole_or_by_parts():
    document = Document("d", "{body} Fever", "High {title} temperature")
    for changes, expected in (
        ({}, "{body} Fever High {title} temperature"),
        ({"document_template": "passage: {text}"}, "passage: {body} Fever High {title} temperature"),
        ({"document_template": "{title} | {body}."}, "{body} Fever | High {title} temperature."),
        ({"document_template": "{body} / {title}"}, "High {title} temperature / {body} Fever"),
    ):
        recipe = configured("contriever", **changes)
        assert recipe.document_text(recipe.content_of(document)) == expected


def test_a_second_encoder_is_not_left_behind():
    with refused(ConfigError, "'medcpt'", "env.recipe.query_model"):
        recipe_of(EnvironmentConfig(retriever="medcpt", model="my/articles"))
    recipe = configured("medcpt", "my/articles", query_model="my/queries")
    assert (recipe.model, recipe.query_model) == ("my/articles", "my/queries")
