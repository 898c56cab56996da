"""A retriever is a recipe, not a class: which model, how it pools and compares, and what its texts are wrapped in."""

import difflib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from ..errors import ConfigError

TEXT = "{text}"
"""Where a template takes the text."""

Similarity = Literal["dot", "cos"]


class RetrieverRecipe(BaseModel):
    """How one retriever turns text into scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: Literal["bm25", "dense"]
    trained: str
    """One sentence for prompts and cards: what the retriever is and how it was trained."""
    model: str | None = None
    """Encoder: a folder, `package:NAME/SUBFOLDER` or a Hub id. None for BM25."""
    pooling: Literal["mean", "cls", "lasttoken"] | None = None
    """From token vectors to one vector. Used where the folder is a bare transformer; a sentence-transformers folder
    brings its own."""
    similarity: Similarity | None = None
    """cos: every embedding has length 1. None takes what the model says of itself."""
    query_template: str | None = TEXT
    """What a query text is wrapped in; None takes the model's own query prompt."""
    document_template: str | None = TEXT
    """What a document is wrapped in; None takes the model's own document prompt."""
    max_length: int | None = None
    """Tokens kept of a text, special tokens included; None takes the model's own."""
    padding_side: Literal["left", "right"] | None = None
    """None takes the tokenizer's own."""
    closing_token: str | None = None
    """The token that the tokenizer must put at the end of every text, where pooling depends on it."""

    @model_validator(mode="after")
    def _templates_take_the_text(self) -> "RetrieverRecipe":
        for template in (self.query_template, self.document_template):
            if template is not None and template.count(TEXT) != 1:
                raise ValueError(f"the template {template!r} must hold {TEXT} exactly once")
        return self


_BUILT_IN = (
    RetrieverRecipe(
        name="bm25",
        kind="bm25",
        trained="BM25, a lexical retriever that is not trained: it counts exact word matches (stemmed, stopwords "
        "removed), rare words weigh more, and it knows no synonyms.",
    ),
    RetrieverRecipe(
        name="all-minilm-l6-v2",
        kind="dense",
        model="sentence-transformers/all-MiniLM-L6-v2",
        trained="all-MiniLM-L6-v2, a small dense retriever trained with a contrastive loss on about one billion "
        "sentence pairs (questions and answers, titles and bodies, duplicates).",
        pooling="mean",
        similarity="cos",
        max_length=256,
    ),
    RetrieverRecipe(
        name="contriever",
        kind="dense",
        model="facebook/contriever",
        trained="Contriever, a dense retriever trained without labels by contrastive learning on pairs of text "
        "spans cropped from the same document (Wikipedia and CCNet).",
        pooling="mean",
        similarity="dot",
        max_length=512,
    ),
    RetrieverRecipe(
        name="qwen3-embedding-0.6b",
        kind="dense",
        model="Qwen/Qwen3-Embedding-0.6B",
        trained="Qwen3-Embedding-0.6B, a dense retriever built on a language model and trained on synthetic and "
        "labelled pairs to follow an instruction that is put before the query.",
        pooling="lasttoken",
        similarity="cos",
        query_template="Instruct: Given a web search query, retrieve relevant passages that answer the query\n"
        f"Query:{TEXT}",
        max_length=8192,
        padding_side="left",
        closing_token="<|endoftext|>",
    ),
)

RECIPES = {recipe.name: recipe for recipe in _BUILT_IN}
"""The built-in recipes by name."""


def find_recipe(name: str, model: str | None = None) -> RetrieverRecipe:
    """The recipe of a built-in name, or a generic one for any sentence-transformers folder or Hub id.

    `model` replaces the encoder of the recipe and nothing else. A generic recipe takes similarity, prompts and length
    from the model itself. Raises ConfigError for a name that is neither, and for a model given to BM25.
    """
    recipe = RECIPES.get(name.lower())
    if recipe is None:
        return _generic(name, model)
    if model is None:
        return recipe
    if recipe.kind == "bm25":
        raise ConfigError(
            f"env.model is {model!r}, but bm25 has no model. Remove env.model, or name a dense retriever."
        )
    return recipe.model_copy(update={"model": model})


def _generic(name: str, model: str | None) -> RetrieverRecipe:
    is_folder = Path(name).expanduser().is_dir()
    if not (is_folder or "/" in name or name.startswith("package:")):
        near = difflib.get_close_matches(name.lower(), RECIPES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"env.retriever is {name!r}; expected one of {', '.join(RECIPES)}, a folder, package:NAME or a Hub id "
            f"(owner/name).{hint}"
        )
    label = Path(name).expanduser().resolve().name if is_folder else name
    return RetrieverRecipe(
        name=label,
        kind="dense",
        model=model or name,
        trained=f"{label}, a dense retriever that compares sentence embeddings.",
        query_template=None,
        document_template=None,
    )
