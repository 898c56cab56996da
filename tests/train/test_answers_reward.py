"""Rewards by answers: the policy learns what lets a reader answer, and an outage of the reader is no reward."""

import json
from dataclasses import dataclass, field

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RewardConfig, RunConfig
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import Step
from querylect.envs.server.app import create_app
from querylect.errors import (
    DataError,
    EngineUnavailableError,
    EnvironmentUnavailableError,
)
from querylect.eval.tasks.gold import read_gold
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, Text
from querylect.train.answers import AnswerClient
from querylect.train.run import train

from ..chat_server import ChatServer, last_user, serving
from ..lessons import ASKED, PROMPT, TEXTS, change, records, without_seconds
from ..raising import refused

pytestmark = pytest.mark.model

LIKED = "prevents scurvy"
"""What the reader of these tests needs to see for a right answer. No question has it in its own ranking."""


@pytest.fixture(scope="module")
def unjudged(tmp_path_factory) -> EnvironmentConfig:
    """The documents of lessons.py with questions that have right answers, splits of their own, and no judgements."""
    folder = tmp_path_factory.mktemp("unjudged")
    lines = [{"_id": name, "title": f"About {name}", "text": text} for name, text in TEXTS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    questions = [
        {"_id": f"{split}-{name}", "text": f"{prefix}{text}", "answers": ["Vitamin C"], "split": split}
        for split, prefix in (("train", ""), ("validation", "tell me: "))
        for name, (text, _) in ASKED.items()
    ]
    questions.append({"_id": "aside", "text": "of no split", "answers": ["x"]})
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(folder)), index=str(folder / "index"))
    build_index(config)
    return config


@pytest.fixture(scope="module")
def unjudged_url(unjudged, run_app):
    with run_app(create_app(Environment.open(unjudged))) as url:
        yield url


@pytest.fixture
def reader():
    """A reader that knows the answer only from the document that it likes."""
    return ChatServer(lambda body: "vitamin C." if LIKED in last_user(body) else "no idea")


@pytest.fixture
def reader_url(reader, run_app):
    with serving(run_app, reader) as url:
        yield url


@pytest.fixture
def run(unjudged, unjudged_url, speaking, reader_url, tmp_path) -> RunConfig:
    """Four steps on those questions, rewarded by that reader."""
    (tmp_path / "prompt.yaml").write_text(PROMPT)
    model = {"model": "reader", "base_url": reader_url, "cache": str(tmp_path / "replies.sqlite")}
    return RunConfig.model_validate(
        {
            "name": "run",
            "output": str(tmp_path / "runs"),
            "env": unjudged.model_dump(),
            "client": {"urls": [unjudged_url]},
            "policy": {"model": str(speaking), "dtype": "float32", "lora": {"r": 4, "alpha": 8}},
            "rewriter": {"name": "few_shot", "prompt": str(tmp_path / "prompt.yaml")},
            "rollout": {"branching": [4], "max_new_tokens": 6, "documents": 2, "document_tokens": 8},
            "reward": {"turn_weights": [1.0], "kind": "answer", "answer": {"reader": model, "metric": "em", "top": 1}},
            "train": {"steps": 4, "questions_per_step": 2, "learning_rate": 0.01, "save_steps": 2},
            "tracking": {"wandb": "disabled"},
        }
    )


def test_the_policy_learns_what_the_reader_likes_without_judgements(run, reader):
    """Two of eight words find the document that the reader likes."""
    folder = train(
        change(
            run,
            **{
                "rollout.branching": [8],
                "train.steps": 8,
                "train.questions_per_step": 5,
                "train.learning_rate": 0.005,
                "train.save_steps": 8,
                "train.validate_steps": 8,
            },
        )
    )
    metrics = records(folder / "metrics.jsonl")
    assert metrics[0]["answer/turn1"] < 0.4
    assert sum(line["answer/turn1"] for line in metrics[-3:]) / 3 > 0.8
    assert all(line["answer/raw"] == 0 and "ndcg/turn1" not in line for line in metrics)
    for line in metrics:  # a raw score of 0: the reward is .9 (1 + score) / 2 + .1 where the format holds
        expected = 0.9 * (line["format/turn1"] + line["answer/turn1"]) / 2 + 0.1 * line["format/turn1"]
        assert line["reward/turn1"] == pytest.approx(expected, abs=1e-5)
    reader_requests = metrics[0]["reader/calls"] + metrics[0]["reader/cached"]
    assert reader_requests == metrics[0]["searches"] + 5, "each raw question is read once beside its rewrites"
    assert len(reader.bodies) == len({last_user(body) for body in reader.bodies}), "equal prompts are asked once"
    validated = records(folder / "validation.jsonl")
    assert validated[-1]["answer_reward/turn1"] > validated[0]["answer_reward/turn1"]
    assert validated[-1]["turn"] == 1
    assert (folder / "best").is_dir()


def learned(folder):
    """The log without what depends on the clock and on cached replies."""
    lines = without_seconds(folder / "metrics.jsonl")
    return [{key: value for key, value in line.items() if not key.startswith("reader")} for line in lines]


@pytest.mark.usefixtures("impatient")
def test_an_outage_of_the_reader_stops_the_run_and_it_goes_on_exactly(run, reader, tmp_path):
    run = change(run, **{"reward.answer.reader.cache": None})
    straight = train(change(run, output=str(tmp_path / "straight")))
    log = tmp_path / "runs" / "run" / "metrics.jsonl"
    reader.always = lambda body: (503, {}) if log.exists() and len(records(log)) == 2 else None
    with refused((EngineUnavailableError, EnvironmentUnavailableError), "503"):
        train(change(run, **{"train.save_steps": 100}))
    assert learned(log.parent) == learned(straight)[:2], "the step without rewards was neither trained nor logged"
    assert [path.name for path in (log.parent / "checkpoints").iterdir()] == ["checkpoint-2"]
    reader.always = None
    train(change(run, **{"train.save_steps": 100}), resume=True)
    assert learned(log.parent) == learned(straight)


@dataclass
class Parrot:
    """Answers with the title of the first document that it is shown, and with `closed_book` if there is none.

    It gives no reply to a prompt that contains `unanswered`.
    """

    unanswered: str = "\0"
    closed_book: str = ""
    request_count: int = 0
    prompts: list[str] = field(default_factory=list)
    identity: dict = field(default_factory=lambda: {"local": "parrot"})

    def generate(self, prompts, draw, deliver):
        for index, prompt in enumerate(prompts):
            self.request_count += 1
            content = prompt.messages[-1]["content"]
            self.prompts.append(content)
            title = content.partition("[1] About ")[2].partition(":")[0] or self.closed_book
            missing = self.unanswered in content
            deliver(index, "gone" if missing else LlmResponse((Text(title, True),), 1, 1))


def scored(environment, tmp_path, parrot, right="citrus", reward=None, **answer):
    """A client of the environment whose questions all have the same right answer."""
    gold = tmp_path / "right.jsonl"
    lines = [{"_id": name, "answers": [right]} for name in ASKED]
    gold.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = RewardConfig.model_validate({**(reward or {}), "kind": "answer", "answer": {"metric": "em", **answer}})
    client = AnswerClient(Environment.open(environment), Llm(parrot), read_gold(gold), settings, 0)
    assert len(client.questions("train")) == len(ASKED)
    return client


def values(client, *searches):
    steps = [Step(question_id=name, plan=SearchPlan.of(text)) for name, text in searches]
    return [result and result.metrics for result in client.step(steps, metrics=["recall@1"])]


@pytest.mark.parametrize(
    ("answer", "rewards"),
    [
        ({"gain": False}, [1.0, 0.0]),
        ({}, [1.0, 0.5]),
        ({"gain": False, "weight": 0.25}, [0.25, 0.75]),
        ({"weight": 0.5}, [0.5, 0.75]),
    ],
)
def test_score_gain_and_mixture_by_hand(lessons, tmp_path, answer, rewards):
    """Raw, "too much sugar" finds nothing and scores 0; insulin is what is judged and citrus what is right."""
    client = scored(lessons, tmp_path, Parrot(), reward={"metric": "recall@1"}, **answer)
    both = values(client, ("sugar", "citrus"), ("sugar", "insulin"))
    assert [metrics["answer"] for metrics in both] == [1.0, 0.0]
    assert [metrics["recall@1"] for metrics in both] == [0.0, 1.0]
    assert [metrics["answer_reward"] for metrics in both] == rewards


def test_without_a_reply_nothing_is_scored(lessons, tmp_path):
    client = scored(lessons, tmp_path, Parrot(unanswered="insulin lowers blood"), gain=False)
    first, second = values(client, ("sugar", "insulin"), ("sugar", "citrus"))
    assert first is None
    assert second["answer_reward"] == 1
    assert "gone" in str(client.last_failure)
    values(client, ("sugar", "citrus"))
    assert client.last_failure is None, "an earlier failure is not that of a later outage"


def test_multiple_choice_is_scored_by_its_option(lessons, tmp_path):
    gold = tmp_path / "choice.jsonl"
    gold.write_text(json.dumps({"_id": "sugar", "options": ["citrus", "insulin"], "answer": "B"}) + "\n")
    settings = RewardConfig.model_validate({"kind": "answer", "answer": {"gain": False}})
    client = AnswerClient(Environment.open(lessons), Llm(Parrot()), read_gold(gold), settings, 0)
    assert [question.id for question in client.questions("train")] == ["sugar"], "the others have no right answer"
    assert [metrics["answer"] for metrics in values(client, ("sugar", "citrus"), ("sugar", "insulin"))] == [0.0, 1.0]
    with refused(DataError, "t-head", "reward.answer.gold"):
        client.questions("test")
