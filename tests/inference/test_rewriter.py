"""`querylect.Rewriter`: a real tiny policy from a run folder or an export, against a real environment service."""

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from querylect.benchmarks.greedy import greedy_trees
from querylect.configs.load import dump_config
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import HitBody, PlanResult
from querylect.errors import CheckpointError, ConfigError, ModelError, RequestError
from querylect.inference.rewriter import Rewriter
from querylect.rollouts.checkpoints import find_checkpoint
from querylect.rollouts.policy import load_policy

from ..hub import Hub, Repository, serving, use_endpoint
from ..lessons import change
from ..raising import refused

pytestmark = pytest.mark.model


def ids(result):
    """The token ids of the prompt and the completion of a result."""
    return result.continuation.node.prompt_ids, result.continuation.node.completion_ids


@pytest.mark.parametrize("policy", ["trained", "failing"])
def test_greedy_answers_are_those_of_eval_token_for_token(policy, request):
    config, folder = request.getfixturevalue(f"{policy}_run")
    rewriter = request.getfixturevalue({"trained": "rewriter", "failing": "failing"}[policy])
    with EnvironmentClient(config.client) as client:
        questions = client.questions("test")
        evaluated = greedy_trees(config, client, find_checkpoint(folder), questions)
        together = rewriter.search(questions, client, turns=2)
        alone = [rewriter.search(question, client, turns=2) for question in questions[:2]]
        rewritten = rewriter.rewrite([question.text for question in questions])
    assert rewriter.turns == 2
    for tree, result, first in zip(evaluated, together, rewritten, strict=True):
        turns = [tree.roots[0], tree.roots[0].children[0]]
        assert [ids(turn.rewrite) for turn in result.turns] == [(n.prompt_ids, n.completion_ids) for n in turns]
        for turn, node in zip(result.turns, turns, strict=True):
            assert (turn.rewrite.failure is not None) == (node.rewrite.plan is None)
            if node.rewrite.plan is not None:
                assert turn.rewrite.plan == node.rewrite.plan
                assert [hit.id for hit in turn.ranking] == [hit.id for hit in node.ranking]
        assert ids(first) == (turns[0].prompt_ids, turns[0].completion_ids)
    assert [ids(result.rewrite) for result in alone] == [ids(result.rewrite) for result in together[:2]]


class Finding:
    """A client that finds these documents."""

    def __init__(self, *documents):
        self.documents = documents

    def search(self, plans):
        assert all(isinstance(plan, SearchPlan) for plan in plans)
        return [PlanResult(ranking=list(self.documents)) for _ in plans]


def test_the_next_turn_is_shown_what_any_client_found(rewriter):
    first = rewriter.rewrite("my head hurts")
    hit = HitBody(id="x", score=1.0, title="About triptan", text="triptan stops migraine")
    second = rewriter.rewrite("my head hurts", turn=2, client=Finding(hit))
    assert second.turn == 2
    prompt, _ = ids(second)
    assert prompt[: len(ids(first)[0]) + len(ids(first)[1])] == [*ids(first)[0], *ids(first)[1]]
    assert "About triptan" in second.continuation.branch.messages[-1]["content"]
    empty = rewriter.rewrite("my head hurts", turn=2, client=Finding())
    assert "Found nothing." in empty.continuation.branch.messages[-1]["content"]
    result = rewriter.search(Question("q", "my head hurts", ("yes", "no")), Finding(), turns=1)
    assert (result.question.options, result.ranking, result.failure) == (("yes", "no"), (), None)


@pytest.fixture
def adapter(trained_run, export, tmp_path):
    """The export of an adapter as of a base model on the Hub, here beside it; and what its querylect.json says."""
    config, run = trained_run
    folder = Path(shutil.copytree(run / "final", tmp_path / "adapter"))
    shutil.copy(Path(export) / "prompt.yaml", folder)
    description = json.loads((Path(export) / "querylect.json").read_text())
    description |= {"lora": True, "base_model": config.policy.model}
    (folder / "querylect.json").write_text(json.dumps(description))
    return folder, description


def test_an_export_answers_as_the_run_that_it_came_from(rewriter, export, adapter):
    questions = [f"question {n}" for n in range(8)]
    expected = [ids(result) for result in rewriter.rewrite(questions)]
    merged = Rewriter.from_pretrained(export)
    assert [ids(result) for result in merged.rewrite(questions)] == expected
    assert merged.turns == 2

    adapter, _ = adapter
    assert [ids(result) for result in Rewriter.from_pretrained(adapter).rewrite(questions)] == expected


def test_an_adapter_answers_only_on_the_weights_that_it_was_trained_on(trained, adapter, tmp_path):
    (config, folder), (adapter, description) = trained, adapter
    model, _ = load_policy(config.policy)
    for path in (folder, adapter):
        assert Rewriter.from_pretrained(path, trust=True).rewrite("my head hurts").plan is not None
    other_base = tmp_path / "other"
    shutil.copytree(config.policy.model, other_base)
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    model.save_pretrained(other_base)
    (folder / "config.yaml").write_text(dump_config(change(config, **{"policy.model": str(other_base)})))
    (adapter / "querylect.json").write_text(json.dumps(description | {"base_model": str(other_base)}))
    for path in (folder, adapter):
        with refused(CheckpointError, f"'{other_base}'"):
            Rewriter.from_pretrained(path, trust=True)


def test_a_policy_for_several_is_asked_for_the_one_that_will_search(trained, lesson_url):
    config, folder = trained
    members = {
        "words": {"rewriter": {"name": "explore"}},
        "meaning": {"rewriter": {"name": "explore"}, "client": {"urls": [lesson_url + "/"]}},
    }
    mixed = change(config, **{"mix": {"environments": members}})
    (folder / "config.yaml").write_text(dump_config(mixed))
    searched = json.loads((folder / "environment.json").read_text())
    dense = {"name": "contriever", "kind": "dense", "trained": "Contriever, an unsupervised dense retriever"}
    searched["retriever"] = {"words": searched["retriever"], "meaning": dense}
    (folder / "environment.json").write_text(json.dumps(searched))
    rewriter = Rewriter.from_pretrained(folder)

    def first_prompt(**more):
        return rewriter.rewrite("my head hurts", **more).continuation.branch.messages[0]["content"]

    assert "Contriever" in first_prompt(retriever="meaning")
    assert "Contriever" not in first_prompt(retriever="words")
    assert first_prompt(retriever="contriever") == first_prompt(retriever="meaning") == first_prompt(retriever=dense)
    for wrong in (None, "neither"):
        with refused(ConfigError, "words, meaning"):
            rewriter.rewrite("x", retriever=wrong)


def test_concurrent_calls_are_answered_as_single_ones(trained_run, rewriter):
    questions = [f"question {n}" for n in range(6)]
    expected = rewriter.rewrite(questions)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(rewriter.rewrite, questions)) == expected

    async def search():
        with EnvironmentClient(trained_run[0].client) as client:
            return await asyncio.gather(*(rewriter.asearch(name, client, turns=2, k=2) for name in questions))

    results = asyncio.run(search())
    assert all(len(result.turns) == 2 and len(result.ranking or ()) <= 2 for result in results)
    assert [result.turns[0].rewrite for result in results] == expected


def test_a_hub_id_is_downloaded_and_what_the_hub_refuses_is_told(rewriter, export, tmp_path, monkeypatch):
    hub = Hub()
    files = {path.name: path.read_bytes() for path in Path(export).iterdir() if path.is_file()}
    hub.repositories["acme/rewriter"] = Repository(private=False)
    hub.repositories["acme/rewriter"].commit("main", "as it is", files)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serving(hub) as url:
        use_endpoint(url, monkeypatch)
        with Rewriter.from_pretrained("acme/rewriter", revision="main") as downloaded:
            assert downloaded.rewrite("my head hurts").record() == rewriter.rewrite("my head hurts").record()
        for name, revision in (("acme/rewriter", "v9"), ("acme/nothing", None)):
            with refused(ModelError, name):
                Rewriter.from_pretrained(name, revision=revision)


def test_what_cannot_be_asked_is_told(trained_run, rewriter, tmp_path):
    _, folder = trained_run
    limited = Rewriter.from_pretrained(folder, settings=["rollout.max_prompt_tokens=128"])
    short, long = limited.rewrite(["head", "head " * 400])
    assert short.continuation is not None
    assert "shorten the question" in long.failure
    with refused(ConfigError, tmp_path, "config.yaml", "querylect.json"):
        Rewriter.from_pretrained(tmp_path)


def test_a_question_is_rewritten_after_its_history(rewriter):
    history = [{"role": "user", "content": "my head hurts"}, {"role": "assistant", "text": "since when?"}]
    alone, after = rewriter.rewrite("since monday"), rewriter.rewrite("since monday", history=history)
    question = Question("", "since monday", history=after.question.history)
    prompts = [rewriter._engine.tokenizer.decode(ids(result)[0]) for result in (alone, after)]
    assert "User: my head hurts\nAssistant: since when?\nsince monday" in prompts[1]
    assert "Assistant:" not in prompts[0]
    assert ids(rewriter.rewrite([question])[0]) == ids(after) == ids(asyncio.run(rewriter.arewrite(question)))
    assert [entry["text"] for entry in after.record()["history"]] == ["my head hurts", "since when?"]
    with refused(RequestError):
        rewriter.rewrite(["since monday"], history=history)
