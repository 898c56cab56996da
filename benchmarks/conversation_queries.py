"""What the texts of a conversation find by themselves: BM25 on the test questions of `conversations`, without a model.

python benchmarks/conversation_queries.py
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from querylect.configs.load import load_config
from querylect.data.types import Question
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.eval.answering import TEXTS

METRIC = "ndcg@10"


def topic(question: Question) -> str:
    """The word that the conversation is about."""
    return question.history[0].text.removeprefix("What does ").removesuffix(" mean?")


QUERIES: dict[str, Callable[[Question], str]] = {
    **TEXTS,
    "the word alone": topic,
    "the definition alone": lambda question: question.history[1].text,
}


def main() -> None:
    config = load_config("conversations", [])
    with TemporaryDirectory() as folder:
        env = config.env.model_copy(update={"index": str(Path(folder) / "index")})
        build_index(env)
        environment = Environment.open(env)
        questions = environment.questions("test")
        for name, text in QUERIES.items():
            rankings = environment.search([SearchPlan.of(text(question), k=10) for question in questions])
            scores = [
                environment.score(question.id, ranking, [METRIC])[METRIC]
                for question, ranking in zip(questions, rankings, strict=True)
            ]
            print(f"{name:<22} {METRIC} {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    main()
