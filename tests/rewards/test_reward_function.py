"""The reward as a function: in TRL's own GRPOTrainer, with a tiny model that samples, and in scoring of *verifiers*."""

import asyncio

import pytest
import querylect
from querylect.configs.schema import RewriterConfig
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import Step
from querylect.errors import ConfigError, EnvironmentUnavailableError, RequestError
from querylect.rewriters.forms import render

from ..grpo import grpo_config, train, unavailable_client  # noqa: F401 (a fixture)
from ..lessons import PROMPT
from ..raising import refused

pytestmark = pytest.mark.server

GOOD = render("it aches", ["triptan headache"])


@pytest.fixture
def reward(lesson_url):
    with querylect.reward_function(lesson_url) as function:
        yield function


def test_completions_are_read_strictly_and_searched_in_one_batch(reward):
    chat = [{"role": "assistant", "content": GOOD}]
    thought = [{"role": "assistant", "reasoning_content": "it aches", "content": "<rewrite>triptan headache</rewrite>"}]
    bad = ["triptan headache", render("", ["<rewrite>"]), "", [{"role": "assistant", "content": None}]]
    completions = [GOOD, chat, thought, render("", ["insulin"]), *bad]
    values = reward(["…"] * 8, completions, question_id=["head"] * 8, answer=["other columns"] * 8)
    assert values == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert reward(None, [GOOD], ["t-sugar"]) == [0.0]


def test_the_rows_ask_in_the_words_of_the_rewriter(reward):
    rows = reward.rows("train")
    assert [row["question_id"] for row in rows] == ["head", "sugar", "gums", "fat", "pills"]
    (message,) = rows[0]["prompt"]
    assert message["role"] == "user"
    assert message["content"].endswith("Question: my head hurts")


def test_an_opening_counts_once_whether_the_completion_repeats_it(lesson_url, tmp_path):
    (tmp_path / "prompt.yaml").write_text(PROMPT + "opening: <think></think><rewrite>\n")
    rewriter = RewriterConfig(name="few_shot", prompt=str(tmp_path / "prompt.yaml"))
    with querylect.reward_function([lesson_url], rewriter) as reward:
        with_opening = "<think></think><rewrite>triptan headache</rewrite>"
        completions = [with_opening, "triptan headache</rewrite>", "triptan headache"]
        assert reward(completions=completions, question_id=["head"] * 3) == [1.0, 1.0, 0.0]


def test_a_stop_earns_the_questions_own_ranking(lesson_url):
    rewriter = RewriterConfig(name="general", stop=True)
    with querylect.reward_function(lesson_url, rewriter) as reward:
        raw_step = Step(question_id="fat", plan=SearchPlan.of("fat in the blood"))
        (raw_result,) = reward._client.step([raw_step])
        assert reward(completions=["<stop/>", GOOD], question_id=["fat", "head"]) == [raw_result.reward, 1.0]
        assert raw_result.reward > 0


def test_an_outage_is_none_and_mistakes_raise(reward, lesson_url, unavailable_client):  # noqa: F811
    with refused(ConfigError, "question_id"):
        reward(["…"], [GOOD])
    with refused(RequestError, "q-nobody"):
        reward(["…"], [GOOD], question_id=["q-nobody"])
    with refused(ConfigError, "hcqr"):
        querylect.reward_function(lesson_url, "hcqr")
    with refused(ConfigError, "rewriter.stop=answer"):
        querylect.reward_function(lesson_url, RewriterConfig(name="general", stop="answer"))
    assert reward.value("head", GOOD) == 1.0
    reward._client, served = unavailable_client, reward._client
    try:
        assert reward(["…"] * 2, [GOOD, "no format"], question_id=["head"] * 2) == [None, 0.0]
        with refused(EnvironmentUnavailableError, "head", "127.0.0.1:9"):
            reward.value("head", GOOD)
    finally:
        reward._client = served


def trainer_of(reward, speaking, folder, *functions, **changes):
    from trl import GRPOTrainer

    return GRPOTrainer(
        model=str(speaking),
        args=grpo_config(folder, max_completion_length=6, **changes),
        train_dataset=reward.dataset("train"),
        reward_funcs=[reward, *functions],
    )


def test_trl_trains_two_steps_on_what_its_samples_find(reward, speaking, tmp_path):
    batches = []

    def note(prompts, completions, question_id, **_):
        batches.append([(name, chat[0]["content"]) for name, chat in zip(question_id, completions, strict=True)])
        return [0.0] * len(prompts)

    entries, moved = train(trainer_of(reward, speaking, tmp_path, note))
    logged = [entry["rewards/ndcg@10/mean"] for entry in entries]
    assert len(logged) == len(batches) == 2
    for batch, mean in zip(batches, logged, strict=True):
        plans = {text: text.removeprefix("<think></think><rewrite>").removesuffix("</rewrite>") for _, text in batch}
        well_formed = [(name, plans[text]) for name, text in batch if render("", [plans[text]]) == text]
        assert well_formed, batch
        results = reward._client.step([Step(question_id=name, plan=SearchPlan.of(word)) for name, word in well_formed])
        assert mean == pytest.approx(sum(result.reward for result in results) / 4, abs=1e-6)
    assert moved


def test_verifiers_scores_a_trace_with_it(reward, unavailable_client):  # noqa: F811
    vf = pytest.importorskip("verifiers.v1", reason="no verifiers: pip install -e '.[verifiers]'")

    class RewriteTask(vf.Task):
        @vf.reward
        async def ndcg(self, task, trace) -> float:
            return await asyncio.to_thread(reward.value, task.id, trace.last_reply)

    def scored(reply):
        task = RewriteTask(vf.TaskData(id="head", prompt="my head hurts"))
        trace_task = vf.TraceTask(type="RewriteTask", data=task.data)
        trace = vf.Trace(task=trace_task, agent=vf.AgentInfo(config=vf.AgentConfig()), root_reply=reply)
        asyncio.run(task.score(trace))
        return trace.reward

    assert (scored(GOOD), scored("no format")) == (1.0, 0.0)
    reward._client, served = unavailable_client, reward._client
    try:
        with pytest.raises(Exception, match="failed"):
            scored(GOOD)
    finally:
        reward._client = served
