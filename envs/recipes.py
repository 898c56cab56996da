"""Retriever recipes: the model, its pooling and similarity, and the templates of its texts.

A built-in recipe follows the model card. `env.recipe` overrides fields of a built-in recipe, or of the defaults of any
other model, so that a model can be added by settings alone (docs/add-a-retriever.md).
"""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError, model_validator

from ..configs.environment import EnvironmentConfig, Pooling, Precision, Similarity
from ..configs.section import Strict
from ..data.types import Document
from ..errors import ConfigError

TEXT = "{text}"
"""Placeholder for the text in a template; for a document, title and text as one string."""
TITLE, BODY = "{title}", "{body}"
"""Placeholders for title and text in a document template that takes them separately."""
INSTRUCTION = "{instruction}"
"""Placeholder for the recipe's instruction in a query template."""

Content = str | tuple[str, str]
"""A document as input of an encoder: title and text as one string, or as a pair."""


class RetrieverRecipe(Strict):
    """How one retriever turns text into scores."""

    name: str
    kind: Literal["bm25", "dense", "hybrid", "questions", "custom"]
    trained: str
    """One sentence for prompts and cards: what the retriever is and how it was trained."""
    model: str | None = None
    """Encoder: a folder, `package:NAME/SUBFOLDER` or a Hub id; the file of a custom retriever. None for BM25."""
    query_model: str | None = None
    """The encoder of queries, where it is another one than that of documents."""
    pooling: Pooling | None = None
    """How token vectors become one vector. It must equal the pooling of a sentence-transformers folder."""
    similarity: Similarity | None = None
    """cos: every embedding has length 1. None takes what the model says of itself."""
    instruction: str | None = None
    """Task instruction, for a query template with {instruction}."""
    query_template: str | None = TEXT
    """Template of a query text; None takes the model's own query prompt."""
    document_template: str | None = TEXT
    """Template of a document, with {text}, or {title} and {body}; None takes the model's own document prompt."""
    pair: bool | None = None
    """Whether the tokenizer gets a document as a pair of title and text, with its separator between them."""
    max_length: int | None = None
    """Tokens kept of a text, special tokens included; None takes the model's own."""
    query_max_length: int | None = None
    """Tokens kept of a query, where it is another number than for documents."""
    dtype: Precision | None = None
    """Data type of the encoder's computation; None is float32."""

    @model_validator(mode="after")
    def _templates_take_the_text(self) -> "RetrieverRecipe":
        query, document = self.query_template, self.document_template
        if query is not None and query.count(TEXT) != 1:
            raise ValueError(f"the template {query!r} must hold {TEXT} exactly once")
        if document is not None and [document.count(slot) for slot in (TEXT, TITLE, BODY)] not in (
            [1, 0, 0],
            [0, 1, 1],
        ):
            raise ValueError(f"the template {document!r} must hold {TEXT} exactly once, or {TITLE} and {BODY}")
        if (query or "").count(INSTRUCTION) != (self.instruction is not None):
            raise ValueError(f"the template {query!r} and the instruction {self.instruction!r} do not fit")
        return self

    def content_of(self, document: Document) -> Content:
        """The document as input of the encoder."""
        separate = self.pair or BODY in (self.document_template or "")
        return (document.title, document.text) if separate else document.contents

    def query_text(self, text: str) -> str:
        """A query text in the query template."""
        assert self.query_template is not None, "templates are filled in when the encoder is opened"
        return self.query_template.replace(INSTRUCTION, self.instruction or "").replace(TEXT, text)

    def document_text(self, content: Content) -> Content:
        """A document in the document template; a pair is returned unchanged."""
        if self.pair:
            return content
        assert self.document_template is not None, "templates are filled in when the encoder is opened"
        if isinstance(content, str):
            return self.document_template.replace(TEXT, content)
        prefix, _, suffix = self.document_template.partition(TITLE)
        title, body = content
        return prefix.replace(BODY, body) + title + suffix.replace(BODY, body)


def content_fields(recipe: RetrieverRecipe) -> dict[str, object]:
    """The fields of a recipe that change an index or its rankings, without model paths and descriptions."""
    return recipe.model_dump(exclude={"model", "query_model", "trained"}, exclude_none=True)


PYTHON = "python:"
"""Prefix of a retriever name that is a path to a custom Python file."""

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
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        query_template=f"Instruct: {INSTRUCTION}\nQuery:{TEXT}",
        max_length=8192,
    ),
    RetrieverRecipe(
        name="medcpt",
        kind="dense",
        model="ncbi/MedCPT-Article-Encoder",
        query_model="ncbi/MedCPT-Query-Encoder",
        trained="MedCPT, a dense retriever for biomedicine with one encoder for queries and one for articles, trained "
        "by contrastive learning on 255 million pairs of a PubMed search and the article that was clicked.",
        pooling="cls",
        similarity="dot",
        pair=True,
        max_length=512,
        query_max_length=64,
    ),
    *(
        RetrieverRecipe(
            name=f"bge-{size}-en-v1.5",
            kind="dense",
            model=f"BAAI/bge-{size}-en-v1.5",
            trained=f"BGE-{size} (English, v1.5), a dense retriever pre-trained on plain text and then trained by "
            "contrastive learning on pairs of texts, to answer queries that follow a fixed instruction.",
            pooling="cls",
            similarity="cos",
            instruction="Represent this sentence for searching relevant passages: ",
            query_template=f"{INSTRUCTION}{TEXT}",
            max_length=512,
        )
        for size in ("small", "base", "large")
    ),
    RetrieverRecipe(name="hybrid", kind="hybrid", trained="Several retrievers whose rankings are merged."),
    RetrieverRecipe(
        name="qb-rag",
        kind="questions",
        trained="QB-RAG, which compares a query with questions that were written for the documents beforehand.",
    ),
)

RECIPES = {recipe.name: recipe for recipe in _BUILT_IN}
"""The built-in recipes by name."""


def recipe_of(config: EnvironmentConfig) -> RetrieverRecipe:
    """The configured recipe, with the overrides of `env.recipe`.

    If the recipe has no placeholder for an instruction, the instruction is put before the query. Raises ConfigError as
    `find_recipe`, and if the overrides do not fit the retriever or contradict each other.
    """
    recipe = find_recipe(config.retriever, config.model)
    changes = {} if config.recipe is None else config.recipe.model_dump(exclude_none=True)
    if recipe.kind != "dense" and set(changes) - {"name", "trained"}:
        keys = ", ".join(f"env.recipe.{key}" for key in changes if key not in {"name", "trained"})
        raise ConfigError(f"{keys}: {recipe.name} has no model to set this for. Remove it, or name a dense retriever.")
    if recipe.query_model and config.model and "query_model" not in changes:
        raise ConfigError(
            f"env.model replaces the document encoder of {recipe.name!r}, which has another one for queries. "
            "Give that one too: env.recipe.query_model."
        )
    if changes.get("instruction") and "query_template" not in changes and recipe.instruction is None:
        changes["query_template"] = f"{INSTRUCTION}{recipe.query_template or TEXT}"
    if "query_template" in changes and INSTRUCTION not in changes["query_template"] and "instruction" not in changes:
        changes["instruction"] = None
    if "document_template" in changes:
        changes["pair"] = None
    if changes.get("dtype") == "float32":
        changes["dtype"] = None  # float32 is the default: the index is the same
    try:
        return RetrieverRecipe.model_validate({**recipe.model_dump(), **changes})
    except ValidationError as error:
        raise ConfigError(f"env.recipe does not fit retriever {recipe.name!r}: {error}") from error


def find_recipe(name: str, model: str | None = None) -> RetrieverRecipe:
    """The recipe of a built-in name, or a generic one for any sentence-transformers folder or Hub id.

    `model` replaces only the encoder of the recipe. A generic recipe takes similarity, prompts and length from the
    model itself. Raises ConfigError for an unknown name, and for a model if the recipe takes none.
    """
    recipe = RECIPES.get(name.lower())
    if recipe is None:
        return _generic(name, model)
    if model is None:
        return recipe
    if recipe.kind != "dense":
        raise ConfigError(
            f"env.model is {model!r}, but {recipe.name} has no model. Remove env.model, or name a dense retriever."
        )
    return recipe.model_copy(update={"model": model})


def _generic(name: str, model: str | None) -> RetrieverRecipe:
    if name.startswith(PYTHON):
        file = Path(name.removeprefix(PYTHON)).expanduser()
        if model is not None or not file.is_file():
            problem = f"env.model is {model!r}" if model is not None else f"there is no file {file}"
            raise ConfigError(f"env.retriever is {name!r}, but {problem}; expected {PYTHON}FILE and no env.model.")
        trained = f"{file.stem}, a retriever of the user's own."
        return RetrieverRecipe(name=file.stem, kind="custom", model=str(file), trained=trained)
    is_folder = Path(name).expanduser().is_dir()
    if not (is_folder or "/" in name or name.startswith("package:")):
        raise ConfigError(
            f"env.retriever is {name!r}; expected one of {', '.join(RECIPES)}, a folder, package:NAME, a Hub id "
            f"(owner/name) or {PYTHON}FILE."
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
