"""The environment in TRL's own GRPOTrainer: a tiny model, real searches, real optimiser steps.

Only the sampled ids are replaced, for a random model never calls a tool: TRL parses them, calls the tool, scores the
rollout and updates the weights.
"""

import json
import math

import pytest
from querylect.envs.adapters.trl import RetrievalEnvironment, environment_factory, question_dataset
from querylect.errors import RequestError

from ..grpo import grpo_config, train, unavailable_client  # noqa: F401 (a fixture)
from ..tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.server

SECOND = 1 / math.log2(3)


def test_the_last_search_is_the_reward(client):
    rollout = RetrievalEnvironment(client, shown=1)
    rollout.reset(question_id="q-head", prompt=[{"role": "user", "content": "…"}])
    assert rollout.get_reward() == 0.0, "nothing was searched"
    assert rollout.search("triptan headache") == "1. About triptan: triptan stops migraine and headache"
    assert rollout.get_reward() == 1.0
    assert rollout.search("unseenword") == "Nothing was found."
    assert rollout.get_reward() == 0.0
    rollout.search("aspirin headache")
    assert rollout.get_reward() == pytest.approx((1 + 2 * SECOND) / (2 + SECOND))
    rollout.reset(question_id="q-sugar")
    assert rollout.get_reward() == 0.0


def test_an_outage_is_no_reward_whatever_was_found_before_and_after(client, unavailable_client):  # noqa: F811
    rollout = RetrievalEnvironment(client)
    rollout.reset(question_id="q-head")
    rollout.search("triptan headache")
    rollout._client = unavailable_client
    assert "did not answer" in rollout.search("triptan")
    rollout._client = client
    rollout.search("triptan headache")
    assert rollout.get_reward() is None
    rollout.reset(question_id="q-head")
    assert rollout.get_reward() == 0.0


def test_what_the_policy_writes_is_its_own_mistake_and_a_refusal_stops_the_training(client):
    rollout = RetrievalEnvironment(client)
    rollout.reset(question_id="q-head")
    rollout.search("triptan headache")
    for query in (5, None, "\ud800"):
        with pytest.raises(ValueError, match="must be a text"):
            rollout.search(query)
    assert rollout.get_reward() == 1.0
    rollout.reset(question_id="q-nobody")
    with pytest.raises(RequestError, match="q-nobody"):
        rollout.search("x")
    with pytest.raises(RequestError, match="q-nobody"):
        rollout.get_reward()


def call(query) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'search', 'arguments': {'query': query}})}\n</tool_call>"


def trainer_of(client, folder, turn_texts, **changes):
    """GRPOTrainer on a tiny Llama, whose n-th turns of every generation are `turn_texts[n]`, cycled over rollouts."""
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template

    class ScriptedTrainer(GRPOTrainer):
        turns = 0

        def _generate_single_turn(self, prompt_ids, *arguments, **options):
            answer = super()._generate_single_turn(prompt_ids, *arguments, **options)
            spoken = turn_texts[type(self).turns % len(turn_texts)]
            type(self).turns += 1
            texts = [spoken[i % len(spoken)] for i in range(len(prompt_ids))]
            ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
            return (ids, *answer[1:])

    tokenizer = tiny_tokenizer(qwen3_chat_template)
    sampling = {"max_completion_length": 600, "generation_kwargs": {"max_new_tokens": 2}}
    return ScriptedTrainer(
        model=tiny_model(vocab_size=len(tokenizer)),
        args=grpo_config(folder, **sampling, **changes),
        processing_class=tokenizer,
        train_dataset=question_dataset(client, "test"),
        environment_factory=environment_factory(client),
    )


def test_trl_trains_on_the_rewards_of_the_service(client, tmp_path):
    first = [call("triptan headache"), call("aspirin headache"), call("scurvy"), "no search"]
    trainer = trainer_of(client, tmp_path, [first, ["that is all"]])
    assert [tool.__name__ for tool in trainer.tools] == ["search"]
    entries, moved = train(trainer)
    middle = (1 + 2 * SECOND) / (2 + SECOND)
    assert entries[0]["rewards/RetrievalEnvironment/mean"] == pytest.approx((1 + middle) / 4, abs=1e-6)
    assert entries[1]["rewards/RetrievalEnvironment/mean"] == 0.0, "the second question is about sugar"
    assert moved


def test_an_outage_teaches_trl_nothing(client, unavailable_client, tmp_path):  # noqa: F811
    trainer = trainer_of(client, tmp_path, [[call("triptan")], ["that is all"]], max_steps=1)
    for environment in trainer._environment_pool[None]:
        environment._client = unavailable_client
    trainer.environment_factories = {None: environment_factory(unavailable_client)}
    entries, moved = train(trainer)
    assert entries[0]["rewards/RetrievalEnvironment/mean"] is None
    assert not moved
