"""Expert iteration: which samples are imitated, that rounds sample the policy as it is, and exact resumption."""

import signal
import time
from statistics import fmean

import pytest
import torch
import yaml
from querylect.configs.schema import ClientConfig
from querylect.data.types import Question
from querylect.envs.client.client import SyncEnvironmentClient
from querylect.envs.plan import SearchPlan
from querylect.errors import ConfigError, EnvironmentUnavailableError
from querylect.rewriters.base import Rewrite
from querylect.rollouts.policy import add_lora, load_policy
from querylect.rollouts.tree import Node, Tree
from querylect.train.arguments import check_shape
from querylect.train.expert_iteration import best_samples, expert_rounds, sample_value
from querylect.train.imitation import imitation_loss
from querylect.train.run import train
from querylect.train.run_folder import RunFolder
from querylect.train.warm_start import warm_start
from safetensors.torch import load_file

from ..forked import Forked
from ..growers import engine_around, grower_of
from ..lessons import change, records, without_seconds
from ..raising import refused
from ..several import Started


@pytest.fixture
def client(lesson_url):
    with SyncEnvironmentClient(ClientConfig(urls=[lesson_url])) as opened:
        yield opened


@pytest.fixture
def expert(settings):
    """Three rounds over four of the five questions each, eight samples of one turn."""
    warm = {"kind": "expert_iteration", "questions": 4, "questions_per_step": 2, "rounds": 3, "samples": 8,
            "learning_rate": 0.02}  # fmt: skip
    return change(settings, **{"train.warm_start": warm, "rollout.branching": [4], "train.steps": 1})


class Ready:
    """A policy with its adapter, its sampler and a grower."""

    def __init__(self, config, client):
        model, tokenizer = load_policy(config.policy)
        self.policy = add_lora(model, config.policy)
        engine, self.sampler = engine_around(config, self.policy, tokenizer)
        self.grower = grower_of(config, client, engine)


def node(reward, prompt=(1,), turn=1, children=(), **changes):
    values = {
        "turn": turn,
        "prompt_ids": list(prompt),
        "completion_ids": [7, 8],
        "logprobs": [],
        "finished": True,
        "text": "",
        "rewrite": Rewrite(SearchPlan.of("word"), rewrites=("word",)),
        "reward": reward,
        "children": list(children),
    }
    return Node(**{**values, **changes})


def tree(*roots):
    return Tree(Question("q", "question"), list(roots))


def chosen(config, *roots, raw=None):
    return [
        (sample.node.reward, sample.baseline)
        for sample in best_samples(tree(*roots), config.reward.turn_weights, config.train.warm_start.margin, raw)
    ]


def test_the_best_sample_is_imitated_where_it_beats_the_mean_by_the_margin(expert):
    config = change(expert, **{"train.warm_start.margin": 0.25})
    assert chosen(config, node(0.0), node(0.5), node(1.0)) == [(1.0, 0.5)]
    assert chosen(config, node(0.5), node(0.5), node(0.8)) == [], "0.2 above a mean of 0.6"
    assert chosen(config, node(0.5), node(1.0)) == [], "the margin itself is not enough"
    assert chosen(change(config, **{"train.warm_start.margin": 0.0}), node(0.7), node(0.7), node(0.7)) == []


def test_unscorable_cut_and_malformed_samples_are_never_imitated(expert):
    failed = node(0.0, rewrite=Rewrite(None, failure="missing rewrite"))
    assert chosen(expert, node(None), node(1.0, finished=False), failed, node(0.8)) == [(0.8, pytest.approx(0.6))]
    assert chosen(expert, node(None), node(0.9)) == [], "alone it equals its mean"
    assert chosen(expert, node(None)) == []


def test_against_the_question_the_mean_of_the_samples_does_not_matter(expert):
    assert chosen(expert, node(0.6), node(0.6), raw=0.4) == [(0.6, 0.4)]
    assert chosen(expert, node(0.0), node(0.6), raw=0.5) == [], "no more than the margin above"


def test_turns_are_chosen_by_themselves_and_equal_prompts_share_one_mean(expert):
    """Second turns under equal first turns answer one prompt; the best of the turn may stand under any first turn."""
    config = change(expert, **{"reward.turn_weights": [0.5, 1.0], "train.warm_start.margin": 0.1})
    first_prompt, second_prompt = (1, 7, 8, 2), (1, 7, 9, 2)
    roots = [
        node(0.6, children=[node(0.1, first_prompt, 2), node(0.1, first_prompt, 2)]),
        node(0.0, children=[node(0.7, first_prompt, 2), node(0.7, first_prompt, 2)]),
        node(0.9, children=[node(0.6, second_prompt, 2), node(0.4, second_prompt, 2)]),
    ]
    values = [(0.5 * 0.6 + 0.1) / 1.5, 0.7 / 1.5, (0.45 + 0.5) / 1.5]
    assert [sample_value(root, [0.5, 1.0]) for root in roots] == pytest.approx(values)
    assert chosen(config, *roots) == [(0.9, pytest.approx(fmean(values))), (0.7, pytest.approx(0.4))]


def test_the_value_of_a_turn_leaves_unscorable_turns_out():
    leaf = node(0.8, turn=3)
    middle = node(0.2, turn=2, children=[leaf, node(None, turn=3)])
    root = node(0.5, children=[middle, node(None, turn=2, children=[node(1.0, turn=3)])])
    weights = [0.2, 0.3, 0.5]
    below = (0.3 * 0.2 + 0.5 * 0.8) / 0.8
    assert sample_value(middle, weights) == pytest.approx(below)
    assert sample_value(root, weights) == pytest.approx(0.2 * 0.5 + 0.8 * below)
    assert sample_value(node(0.5, children=[node(None, turn=2)]), [0.5, 1.0]) is None
    assert sample_value(node(None, children=[node(1.0, turn=2)]), [0.5, 1.0]) is None


def test_a_stop_counts_for_the_turns_that_it_leaves_out_whatever_its_siblings_do():
    """The value of a first turn is the same whether a sibling of its stop goes on, as long as the rewards are equal."""
    weights = [0.2, 0.3, 0.5]
    stop = node(0.8, turn=2, rewrite=Rewrite(SearchPlan.of("word"), stop=True))
    search = node(0.8, turn=2, children=[node(0.8, turn=3)])
    expected = 0.2 * 0.1 + 0.8 * 0.8
    for children in ([stop], [stop, search], [search]):
        assert sample_value(node(0.1, children=children), weights) == pytest.approx(expected)


def test_what_is_imitated_is_what_was_sampled(expert, client):
    ready = Ready(expert, client)
    (first, *_) = expert_rounds(expert, ready.policy, ready.grower, ready.sampler, client.questions("train"))
    taught = [sample for several in first.demonstrations for sample in several]
    assert taught
    for sample in taught:
        ((begin, end),) = sample.spans
        assert end == len(sample.ids)
        text = ready.grower.chat.tokenizer.decode(sample.ids)
        assert text.endswith("</rewrite><|im_end|>")
        ids = torch.tensor([sample.ids])
        logps = torch.log_softmax(ready.policy(input_ids=ids).logits[0, :-1].float(), -1)
        logps = logps.gather(-1, ids[0, 1:, None])[begin - 1 :, 0]
        torch.testing.assert_close(imitation_loss(ready.policy, [sample], expert.train), -logps.mean())


@pytest.mark.parametrize("branching", [[4], [2, 2]])
def test_every_round_samples_from_the_policy_as_it_is_then(expert, client, monkeypatch, branching):
    """Between two rounds the adapter is changed: the samples of the second have its log-probabilities."""
    ready = Ready(change(expert, **{"rollout.branching": branching}), client)
    trees, grow = [], ready.grower.grow

    def record_trees(questions, widths, **how):
        trees.append(grow(questions, widths, **how))
        return trees[-1]

    monkeypatch.setattr(ready.grower, "grow", record_trees)
    rounds = expert_rounds(expert, ready.policy, ready.grower, ready.sampler, client.questions("train"))
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


def test_imitating_makes_the_best_samples_likelier(expert, client, tmp_path):
    torch.manual_seed(0)
    config = change(expert, **{"train.warm_start.rounds": 1, "train.warm_start.questions": 5,
                               "train.warm_start.questions_per_step": 1})  # fmt: skip
    ready, questions = Ready(config, client), client.questions("train")
    (first,) = expert_rounds(config, ready.policy, ready.grower, ready.sampler, questions)
    taught = [sample for several in first.demonstrations for sample in several]
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    with torch.no_grad():
        initial_loss = float(imitation_loss(ready.policy, taught))
    warm_start(config, ready.policy, ready.grower, ready.sampler, questions, folder)
    with torch.no_grad():
        assert float(imitation_loss(ready.policy, taught)) < initial_loss - 0.1
    lines = records(folder.warm_start)
    assert [line["step"] for line in lines] == list(range(1, len(first.demonstrations) + 1))
    assert all(line["round"] == 1 and line["reward_best"] > line["reward_mean"] > 0 for line in lines)
    assert lines[0]["imitated_share"] == pytest.approx(len(lines) / 5)


def test_rounds_ask_other_questions_until_a_pass_is_over(expert, client, monkeypatch):
    requests, widths = [], set()
    config = change(expert, **{"rollout.branching": [4, 2]})
    ready = Ready(config, client)
    grow = ready.grower.grow

    def record_questions(questions, branching, **how):
        requests.extend(zip([question.id for question in questions], how["streams"], strict=True))
        widths.add(tuple(branching))
        return grow(questions, branching, **how)

    monkeypatch.setattr(ready.grower, "grow", record_questions)
    list(expert_rounds(config, ready.policy, ready.grower, ready.sampler, client.questions("train")))
    names = [name for name, _ in requests]
    assert len(names) == 12
    assert len(set(names[:5])) == len(set(names[5:10])) == 5
    assert names[:5] != names[5:10]
    assert len(dict(requests)) == 5
    assert len({stream for _, stream in requests}) == 12, "asked again, a question is sampled anew"
    assert widths == {(8, 2)}


def test_samples_do_not_depend_on_what_is_sampled_beside_them(expert, client):
    def demonstrations(together):
        config = change(expert, **{"train.questions_per_step": together})
        ready = Ready(config, client)
        rounds = expert_rounds(config, ready.policy, ready.grower, ready.sampler, client.questions("train"))
        return [round_result.demonstrations for round_result in rounds]

    assert demonstrations(1) == demonstrations(4)


def test_the_question_as_it_stands_is_searched_for_its_baseline(expert, client):
    """Below 1 there is room above every question; a margin of 1 leaves none."""
    ready = Ready(expert, client)
    config = change(expert, **{"train.warm_start.baseline": "question", "train.warm_start.margin": 0.0})
    steps, step = [], client.step

    class Recorded:
        def step(self, requests, with_text=False, metrics=()):
            results = step(requests, with_text=with_text, metrics=metrics)
            steps.extend(zip(requests, results, strict=True))
            return results

    ready.grower.client = Recorded()
    taught = [
        sample
        for now in expert_rounds(config, ready.policy, ready.grower, ready.sampler, client.questions("train"))
        for several in now.demonstrations
        for sample in several
    ]
    texts = {question.id: question.text for question in client.questions("train")}
    raw = {
        request.question_id: result.reward
        for request, result in steps
        if request.plan.probes[0].terms[0].text == texts[request.question_id]
    }
    better = {request.question_id for request, result in steps if result.reward > raw[request.question_id]}
    assert len(raw) == 5
    prompts = ready.grower.chat.tokenizer.batch_decode([sample.ids for sample in taught])
    assert {name for name, text in texts.items() if any(text in prompt for prompt in prompts)} == better
    assert 0 < len(better) < 5


def test_a_round_without_anything_to_imitate_is_passed_over_and_a_run_refused(expert, client, tmp_path):
    ready = Ready(expert, client)
    config = change(expert, **{"train.warm_start.margin": 1.0})
    with refused(ConfigError, "train.warm_start.margin 1"):
        warm_start(config, ready.policy, ready.grower, ready.sampler, client.questions("train"), RunFolder(tmp_path))
    assert not (tmp_path / "warm_start.jsonl").exists()


def test_an_outage_stops_expert_iteration(expert, client, tmp_path):
    class Gone:
        last_failure = "connection refused"

        def step(self, steps, with_text=False, metrics=()):
            return [None] * len(steps)

    ready = Ready(expert, client)
    ready.grower.client = Gone()
    with refused(EnvironmentUnavailableError, "round 1", "connection refused"):
        warm_start(expert, ready.policy, ready.grower, ready.sampler, client.questions("train"), RunFolder(tmp_path))


ALL_WEIGHTS = {"rollout.branching": [2, 2], "policy.lora": None, "train.warm_start.learning_rate": 1e-3}


@pytest.mark.parametrize("changes", [{}, ALL_WEIGHTS], ids=["[4] lora", "[2, 2] full"])
def test_a_run_goes_on_from_expert_iteration(expert, changes):
    folder = train(change(expert, **changes))
    lines = records(folder / "warm_start.jsonl")
    assert {line["round"] for line in lines} <= {1, 2, 3}
    assert len(lines) >= 2
    (warmed,), (trained,) = ([*(folder / name).glob("*.safetensors")] for name in ("warm_start", "final"))
    warm_weights, final_weights = load_file(warmed), load_file(trained)
    assert any((warm_weights[name] != final_weights[name]).any() for name in warm_weights)
    assert len(records(folder / "metrics.jsonl")) == 1


def test_expert_iteration_that_sigterm_ended_begins_again_and_comes_out_equal(expert, tmp_path):
    config = change(expert, **{"name": "stopped", "train.warm_start.rounds": 12})
    uninterrupted = train(change(config, name="whole"))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    process = Forked(["train", str(tmp_path / "run.yaml")], tmp_path / "out", tmp_path / "err")
    folder = uninterrupted.parent / "stopped"
    until = time.monotonic() + 240
    while not (folder / "warm_start.jsonl").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 75, (tmp_path / "err").read_text()
    assert not (folder / "warm_start").exists(), "it was stopped in the middle"
    train(config, resume=True)
    assert records(folder / "warm_start.jsonl") == records(uninterrupted / "warm_start.jsonl")
    assert without_seconds(folder / "metrics.jsonl") == without_seconds(uninterrupted / "metrics.jsonl")


def test_two_processes_share_what_the_first_has_imitated(expert, tmp_path):
    config = change(expert, **{"train.questions_per_step": 4, "train.log_rollouts": 4, "train.steps": 2})
    single = train(config)
    with Started(change(config, output=str(tmp_path / "both")), tmp_path / "two", 2) as started:
        assert started.codes() == [0, 0], started.stderr(0) + started.stderr(1)
    pair = tmp_path / "both" / "run"
    assert records(pair / "warm_start.jsonl") == records(single / "warm_start.jsonl")
    warmed, alone = (load_file(folder / "warm_start" / "adapter_model.safetensors") for folder in (pair, single))
    assert all(torch.equal(warmed[name], alone[name]) for name in alone)
    rollouts = [records(folder / "rollouts.jsonl") for folder in (pair, single)]
    assert rollouts[0] == rollouts[1], "half of them are of the second process"


def test_an_engine_that_all_processes_share_is_refused(expert):
    served = change(expert, **{"rollout.engine": "vllm_server"})
    check_shape(served.train, served.rollout)
    with refused(ConfigError, "of 2", "rollout.engine=transformers"):
        check_shape(served.train, served.rollout, 2)


def test_a_model_card_says_which_warm_start_there_was():
    from querylect.export.card import _warm_start

    text = _warm_start({"kind": "expert_iteration", "questions": 96, "rounds": 4})
    assert text == "4 rounds of expert iteration on 96 questions each"
    assert _warm_start({"questions": 720}) == "720 graded proposals imitated"
