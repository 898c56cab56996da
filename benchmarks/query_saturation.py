"""BM25 with and without k3 on long queries: nDCG@10 of each kind of query at each k3 (docs/add-a-retriever.md).

python benchmarks/query_saturation.py DATASET

DATASET is a folder in BEIR form with test questions. A long query is the question, repeated or not, and the text of the
first hit of the plain question, which stands for a passage that a model writes after HyDE or Query2doc: on the topic,
with repetitions, and partly wrong. No model is called.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from querylect.configs.environment import DatasetConfig, EnvironmentConfig, QueryFactor
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.markdown_tables import markdown_table

METRIC = "ndcg@10"
K3: tuple[QueryFactor, ...] = (None, 0.0, 2.0, 8.0, "query-side")
QUERIES: dict[str, Callable[[str, str], str]] = {
    "question": lambda question, passage: question,
    "question + passage": lambda question, passage: f"{question} {passage}",
    "5 × question + passage": lambda question, passage: " ".join([question] * 5 + [passage]),
    "passage": lambda question, passage: passage,
}


def main(dataset: str) -> None:
    with TemporaryDirectory() as folder:
        env = EnvironmentConfig(
            dataset=DatasetConfig(kind="beir", path=dataset), index=str(Path(folder) / "index"), log="none"
        )
        build_index(env)
        linear = Environment.open(env)
        questions = linear.questions("test")
        hits = linear.search([SearchPlan.of(question.text, k=1) for question in questions])
        passages = [linear.document(hit[0].id).text if hit else "" for hit in hits]
        rows = {name: [name] for name in QUERIES}
        for k3 in K3:
            environment = Environment.open(env.model_copy(update={"k3": k3}))
            for name, write in QUERIES.items():
                texts = [write(question.text, passage) for question, passage in zip(questions, passages, strict=True)]
                rankings = environment.search([SearchPlan.of(text, k=10) for text in texts])
                scores = [
                    environment.score(question.id, ranking, [METRIC])[METRIC]
                    for question, ranking in zip(questions, rankings, strict=True)
                ]
                rows[name].append(f"{sum(scores) / len(scores):.3f}")
    head = ("query", *("linear" if k3 is None else k3 if isinstance(k3, str) else f"k3 = {k3:g}" for k3 in K3))
    print(f"{METRIC} of {len(questions)} test questions of {Path(dataset).name}\n")
    print("\n".join(markdown_table(head, rows.values())))


if __name__ == "__main__":
    main(sys.argv[1])
