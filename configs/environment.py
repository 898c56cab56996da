"""Settings of an environment: dataset, retriever, index, service and client."""

import os
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from .section import Section


class DatasetConfig(Section):
    """The corpus, questions and relevance judgements."""

    path: Annotated[str, Field(min_length=1)] = "hpo"
    """A folder in BEIR format (docs/datasets.md), or a set that is made from an installed package: `wordnet`, the
    demo's reverse dictionary; `wordnet_conversations`, follow-up questions about its words (docs/conversations.md);
    `hpo`, lay phrases and clinical terms."""


Pooling = Literal["mean", "cls", "lasttoken", "max", "weightedmean"]
Similarity = Literal["dot", "cos"]
Precision = Literal["float32", "bfloat16"]


class RecipeConfig(Section):
    """Overrides of a retriever's preset (envs/presets.py), or of the configuration in its model folder."""

    name: str | None = None
    """Name shown to clients and in prompts; None: the retriever's own name."""
    trained: str | None = None
    """One sentence for prompts: the type of retriever and how it was trained."""
    query_model: str | None = None
    """Query encoder, if it differs from the document encoder."""
    pooling: Pooling | None = None
    """How token vectors are pooled into one vector; a sentence-transformers folder has its own setting."""
    similarity: Similarity | None = None
    """`cos` normalizes every vector to length 1."""
    query_prompt: str | None = None
    """Prefix of a query, such as `"query: "` or an instruction."""
    document_prompt: str | None = None
    """Prefix of a document, whose title and text are one string after it."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Maximum tokens of a text; longer texts are truncated."""
    query_max_length: Annotated[int, Field(ge=2)] | None = None
    """Maximum tokens of a query, if different from max_length."""
    dtype: Precision | None = None
    """Data type of the encoder's computation; None: float32. bfloat16 is faster on hardware that supports it, and needs
    a separate index. The data type of stored vectors is `env.vectors.dtype` in both cases."""


class RemoteConfig(Section):
    """An OpenSearch-compatible service with the corpus, under the corpus's document ids."""

    url: str
    """http://HOST:PORT or https://…"""
    index: str
    """Name of the index or alias in the service."""
    language: Literal["query_string"] | None = None
    """Of bm25: the language of native queries, Lucene's in `query_string` queries; None: `match` queries alone."""


SearchEngine = Literal["bm25s", "rank_bm25", "milvus"]


class QuestionIndexConfig(Section):
    """The retriever `qb-rag`: questions with the contents that answer them, and the retriever that ranks them."""

    folder: str
    """Folder with the questions, written by `querylect index questions`."""
    retriever: str = "bm25"
    """Retriever that ranks the questions: as `env.retriever`, except hybrid and qb-rag."""
    index: str
    """Index folder of the questions for that retriever; `querylect index build` builds it as well."""
    model: str | None = None
    """Model folder or id of its weights, as `env.model`; None: that of the preset."""


class RetrieverConfig(Section):
    """A retriever: a preset or a model, and what differs from it."""

    retriever: str = "bm25"
    """A preset (bm25, fts5, postgres, tantivy, all-minilm-l6-v2, contriever, qwen3-embedding-0.6b, medcpt,
    bge-base-en-v1.5, hybrid, qb-rag, …), a model folder, `package:NAME/SUBFOLDER`, a Hub id, or `python:FILE`
    (docs/add-a-retriever.md). A member of a hybrid is no hybrid itself."""
    model: str | None = None
    """Encoder folder, `package:NAME/SUBFOLDER` or Hub id; None: that of the preset."""
    recipe: RecipeConfig | None = None
    """Overrides of the preset: prompts, pooling, similarity, lengths, a separate query encoder."""
    remote: RemoteConfig | None = None
    """Search service that bm25 or a dense retriever uses instead of a local index."""
    question_index: QuestionIndexConfig | None = None
    """The question index of the retriever `qb-rag` (docs/qb-rag.md)."""

    @model_validator(mode="after")
    def _check_question_index(self) -> "RetrieverConfig":
        if (self.retriever == "qb-rag") != (self.question_index is not None):
            raise ValueError(
                f"retriever is {self.retriever!r} and question_index is "
                f"{'missing' if self.question_index is None else 'given'}; the retriever 'qb-rag' and the section "
                "question_index go together"
            )
        return self


class MemberConfig(RetrieverConfig):
    """One retriever of a hybrid; other settings are those of the environment."""

    index: str = ""
    """Index folder of this retriever; if empty, a folder beside the hybrid's, named after the retriever and its
    settings. In an evaluation spec, an environment with this retriever has the same folder."""


class HybridConfig(Section):
    """Several retrievers whose rankings are merged by reciprocal rank fusion."""

    members: Annotated[list[MemberConfig], Field(min_length=2)]
    depth: Annotated[int, Field(ge=1)] = 100
    """Documents that each member contributes; also the most that a search plan may request."""


class RerankConfig(Section):
    """A cross-encoder that reranks the retriever's top documents."""

    model: str
    """Folder, `package:NAME/SUBFOLDER` or Hub id of a sentence-transformers CrossEncoder."""
    depth: Annotated[int, Field(ge=1)] = 100
    """Documents of each probe that are reranked; also the most that a search plan may request."""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """Maximum tokens of query and document together; None: the model's own limit."""


class VectorsConfig(Section):
    """How the vectors of a dense retriever are stored and searched (docs/indexes.md)."""

    dtype: Literal["float32", "float16"] = "float32"
    """Data type of stored vectors. float16 halves the size and changes each score by about one part in a thousand."""
    search: Literal["flat", "hnsw"] = "flat"
    """FAISS index type. flat is exact; hnsw is approximate and faster, and scores exactly what it finds."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Device of the FAISS search; gpu, the first one that the process sees, needs faiss-gpu and takes flat."""


class EnvironmentConfig(RetrieverConfig):
    """One environment: retriever × corpus × questions × qrels, and the service that serves it."""

    name: str = ""
    """Name shown to clients; if empty, the dataset and the retriever."""
    dataset: DatasetConfig = DatasetConfig()
    hybrid: HybridConfig | None = None
    """The members of the retriever `hybrid`."""
    rerank: RerankConfig | None = None
    """Cross-encoder that reranks the retriever's top documents; None: no reranking."""
    engine: SearchEngine = "bm25s"
    """Search engine of bm25: bm25s, rank_bm25 (a slow reference) or milvus; milvus also replaces FAISS for dense
    retrievers."""
    language: str = "english"
    """Language of the documents, for the stemmer and stop words of bm25 (one of PyStemmer's, such as german or hindi;
    text in a script without spaces, such as Chinese, is indexed by pairs of characters in every language) and of
    postgres (a text search configuration of the server, such as german or simple) and tantivy; fts5 stems english
    alone."""
    milvus_uri: str | None = None
    """engine=milvus: http://HOST:PORT or https://… of a Milvus server; or a path that ends in .db, which milvus-lite
    opens in the process itself, one process at a time; None: `INDEX.milvus.db` beside the index folder."""
    postgres_url: str = ""
    """retriever=postgres: postgresql://USER@HOST:PORT/DATABASE, a database in UTF-8. What it leaves out is libpq's:
    PGHOST, PGDATABASE, PGUSER, …; a password is read from PGPASSWORD or ~/.pgpass alone."""
    order: Literal["score", "date"] = "score"
    """Order in which a retriever with a query language lists what matches: by its score, or by date, the newest first,
    as Boolean engines without ranking do (`metadata.date` of corpus.jsonl; a fixed order where there is none)."""
    index: str = "indexes/hpo-bm25"
    """Index folder, written by `querylect index build` and opened by `querylect serve`."""
    vectors: VectorsConfig = VectorsConfig()
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach requires a token."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free port."""

    @property
    def index_folder(self) -> Path:
        """`index` as a path, `~` being the home folder."""
        return Path(os.path.expanduser(self.index))

    @property
    def has_index(self) -> bool:
        """Whether a whole index is there: it is renamed into place."""
        return (self.index_folder / "meta.json").is_file()

    @field_validator("postgres_url")
    @classmethod
    def _check_password(cls, url: str) -> str:
        if urlsplit(url).password is not None or "password" in url:
            raise ValueError("postgres_url holds a password, which others may read there: set PGPASSWORD or ~/.pgpass")
        return url

    @model_validator(mode="after")
    def _check_hybrid(self) -> "EnvironmentConfig":
        if (self.retriever == "hybrid") != (self.hybrid is not None):
            raise ValueError(
                f"env.retriever is {self.retriever!r} and env.hybrid is {'missing' if self.hybrid is None else 'given'}"
                "; the retriever 'hybrid' and the section env.hybrid with its members go together"
            )
        return self


class ClientConfig(Section):
    """How the client connects to the environment service."""

    urls: list[str] | Literal["local"] = "local"
    """URLs of the replicas of one environment service; `local` runs the service as a child process."""
    token_env: str = "QUERYLECT_TOKEN"
    """Name of the environment variable with the bearer token, if the service requires one."""
    deadline: Annotated[float, Field(gt=0)] = 120.0
    """Deadline of one batch of steps over all attempts and replicas, in seconds; after it the searches have failed. One
    attempt takes at most a quarter of it."""


class ServedConfig(Section):
    """An environment and how to connect to it."""

    env: EnvironmentConfig = EnvironmentConfig()
    client: ClientConfig = ClientConfig()
