"""Expert iteration: which samples are imitated, that rounds follow the policy, and runs that begin with it."""

import pytest
import torch
from querylect.configs.schema import ClientConfig
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.plan import SearchPlan
from querylect.errors import ConfigError
from querylect.rewriters.base import Rewrite
from querylect.rollouts.policy import add_lora, load_policy
from querylect.rollouts.tree import Node, Tree
from querylect.train import expert_iteration
from querylect.train.expert_iteration import best_sample, expert_rounds
from querylect.train.imitation import imitation_loss
from querylect.train.run import train
from querylect.train.run_folder import RunFolder
from querylect.train.warm_start import warm_start
from safetensors.torch import load_file

from ..lessons import change, records
from ..raising import refused
from ..several import Started
from ..tree_samplers import engine_around, tree_sampler_of

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture
def client(lesson_url):
    with EnvironmentClient(ClientConfig(urls=[lesson_url])) as opened:
        yield opened


@pytest.fixture
def expert(settings):
    """Three rounds over four of the five questions each, eight samples of one turn."""
    warm = {"questions": 4, "questions_per_step": 2, "learning_rate": 0.02}
    return change(settings, **{"train.warm_start": warm, "rollout.branching": [8], "train.steps": 1})


class Ready:
    """A policy with its adapter, its sampler and a tree_sampler."""

    def __init__(self, config, client):
        model, tokenizer = load_policy(config.policy)
        self.policy = add_lora(model, config.policy)
        engine, self.weight_sync = engine_around(config, self.policy, tokenizer)
        self.tree_sampler = tree_sampler_of(config, client, engine)


def node(reward, **changes):
    rewrite = Rewrite(SearchPlan.of("word"), rewrites=("word",))
    return Node(**{"turn": 1, "prompt_ids": [1], "completion_ids": [7, 8], "logprobs": [], "finished": True, "text": "",
                   "rewrite": rewrite, "reward": reward, **changes})  # fmt: skip


def chosen(*roots):
    best = best_sample(Tree(Question("q", "question"), list(roots)))
    return None if best is None else best.reward


def test_the_best_sample_is_imitated_where_it_beats_the_mean_by_the_margin(monkeypatch):
    monkeypatch.setattr(expert_iteration, "MARGIN", 0.25)
    assert chosen(node(0.0), node(0.5), node(1.0)) == 1.0
    assert chosen(node(0.5), node(0.5), node(0.8)) is None, "0.2 above a mean of 0.6"
    assert chosen(node(0.5), node(1.0)) is None, "the margin itself is not enough"


def test_unscored_cut_and_malformed_samples_are_never_imitated():
    failed = node(0.0, rewrite=Rewrite(None, failure="missing rewrite"))
    assert chosen(node(None), node(1.0, finished=False), failed, node(0.8)) == 0.8
    assert chosen(node(None), node(0.9)) is None, "alone it equals its mean"
    assert chosen(node(None)) is None


def test_what_is_imitated_is_what_was_sampled(expert, client):
    ready = Ready(expert, client)
    (first, *_) = expert_rounds(expert, ready.policy, ready.tree_sampler, ready.weight_sync, client.questions("train"))
    assert first.demonstrations
    for sample in first.demonstrations:
        ((begin, end),) = sample.spans
        assert end == len(sample.ids)
        text = ready.tree_sampler.chat.tokenizer.decode(sample.ids)
        assert text.endswith("</rewrite><|im_end|>")
        ids = torch.tensor([sample.ids])
        logps = torch.log_softmax(ready.policy(input_ids=ids).logits[0, :-1].float(), -1)
        logps = logps.gather(-1, ids[0, 1:, None])[begin - 1 :, 0]
        torch.testing.assert_close(imitation_loss(ready.policy, [sample], expert.train), -logps.mean())


def test_every_round_samples_from_the_policy_as_it_is_then(expert, client, monkeypatch):
    """Between two rounds the adapter is changed: the samples of the second have its log-probabilities."""
    ready = Ready(expert, client)
    trees, grow = [], ready.tree_sampler.grow

    def record_trees(questions, widths, **how):
        trees.append(grow(questions, widths, **how))
        return trees[-1]

    monkeypatch.setattr(ready.tree_sampler, "grow", record_trees)
    rounds = expert_rounds(expert, ready.policy, ready.tree_sampler, ready.weight_sync, client.questions("train"))
    for _ in range(2):
        trees.clear()
        next(rounds)
        for node in [node for grown in trees for tree in grown for node in tree.walk()][::7]:
            ids = torch.tensor([[*node.prompt_ids, *node.completion_ids]])
            with torch.no_grad():
                logps = torch.log_softmax(ready.policy(input_ids=ids).logits[0, :-1].float(), -1)
            logps = logps.gather(-1, ids[0, 1:, None])[len(node.prompt_ids) - 1 :, 0]
            torch.testing.assert_close(torch.tensor(node.logprobs), logps, rtol=1e-3, atol=1e-3)
        torch.manual_seed(0)
        with torch.no_grad():
            for weights in ready.policy.parameters():
                if weights.requires_grad:
                    weights += 0.05 * torch.randn_like(weights)


def test_rounds_ask_other_questions_until_a_pass_is_over(expert, client, monkeypatch):
    requests = []
    ready = Ready(expert, client)
    grow = ready.tree_sampler.grow

    def record_questions(questions, branching, **how):
        requests.extend(zip([question.id for question in questions], how["streams"], strict=True))
        return grow(questions, branching, **how)

    monkeypatch.setattr(ready.tree_sampler, "grow", record_questions)
    list(expert_rounds(expert, ready.policy, ready.tree_sampler, ready.weight_sync, client.questions("train")))
    names = [name for name, _ in requests]
    assert len(names) == 12
    assert len(set(names[:5])) == len(set(names[5:10])) == 5
    assert len({stream for _, stream in requests}) == 12, "asked again, a question is sampled anew"


def test_a_run_without_anything_to_imitate_is_refused(expert, client, tmp_path, monkeypatch):
    monkeypatch.setattr(expert_iteration, "MARGIN", 1.0)
    ready = Ready(expert, client)
    with refused(ConfigError, "train.warm_start.questions"):
        warm_start(
            expert, ready.policy, ready.tree_sampler, ready.weight_sync, client.questions("train"), RunFolder(tmp_path)
        )
    assert not (tmp_path / "warm_start.jsonl").exists()


def test_two_processes_share_what_the_first_has_imitated(expert, tmp_path):
    config = change(expert, **{"train.questions_per_step": 4, "train.steps": 2})
    single = train(config)
    assert {line["round"] for line in records(single / "warm_start.jsonl")} <= {1, 2, 3}
    with Started(change(config, output=str(tmp_path / "both")), tmp_path / "two", 2) as started:
        assert started.codes() == [0, 0], started.stderr(0) + started.stderr(1)
    pair = tmp_path / "both" / "run"
    assert records(pair / "warm_start.jsonl") == records(single / "warm_start.jsonl")
    warmed, alone = (load_file(folder / "warm_start" / "adapter_model.safetensors") for folder in (pair, single))
    assert all(torch.equal(warmed[name], alone[name]) for name in alone)
    rollouts = [records(folder / "rollouts.jsonl") for folder in (pair, single)]
    assert rollouts[0] == rollouts[1], "half of them are of the second process"
