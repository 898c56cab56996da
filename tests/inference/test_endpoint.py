"""A rewriter whose model answers behind an OpenAI-compatible endpoint: real tiny weights behind real HTTP."""

import asyncio
import json

import pytest
import torch
import yaml
from querylect.cli import main
from querylect.configs.llm import LlmConfig
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient
from querylect.errors import ConfigError, EngineUnavailableError
from querylect.export.export import export_to_folder
from querylect.inference.rewriter import Rewriter

from ..chat_server import ChatServer, last_user, serving
from ..lessons import CLOSE, OPEN, change, save_chain
from ..raising import refused
from ..used import save_run

pytestmark = pytest.mark.model

QUESTIONS = ["my head hurts", Question("q", "too much sugar", ("yes", "no")), "bleeding gums"]


def continues(folder):
    """What `vllm serve FOLDER` answers: the template's rendering of the chat, continued greedily."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(body):
        prefilled = body.get("continue_final_message", False)
        text = tokenizer.apply_chat_template(
            body["messages"],
            tokenize=False,
            continue_final_message=prefilled,
            add_generation_prompt=body.get("add_generation_prompt", True),
        )
        prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            ids = model.generate(prompt, do_sample=False, max_new_tokens=body["max_tokens"])[0, prompt.shape[1] :]
        return tokenizer.decode([token for token in ids if token != tokenizer.eos_token_id])

    return answer


@pytest.fixture
def write_settings(settings, tmp_path):
    """A function: the file of these settings with some changed."""

    def write(**changes):
        (tmp_path / "mine.yaml").write_text(json.dumps(change(settings, **changes).model_dump(mode="json")))
        return str(tmp_path / "mine.yaml")

    return write


@pytest.fixture(params=["", OPEN], ids=["whole", "prefilled"])
def exported(request, settings, tmp_path):
    """An export whose prompts leave the whole answer to the policy, or begin it."""
    if request.param:
        prompt = tmp_path / "prompt.yaml"
        prompt.write_text(f"{prompt.read_text()}\nopening: {request.param!r}\n")
    config = change(settings, **{"rollout.document_tokens": 64})
    run = save_run(config, tmp_path / "runs" / "run")
    options = {"merge_lora": True, "without_evaluation": True, "licence": "mit"}
    export_to_folder(run, tmp_path / "export", **options)
    return tmp_path / "export"


def test_a_policy_behind_an_endpoint_answers_as_on_this_machine(exported, settings, run_app, capsys):
    local = Rewriter.from_pretrained(exported, turn=1)
    server = ChatServer(continues(exported))
    with serving(run_app, server) as url, Rewriter.from_pretrained(exported, turn=1, endpoint=url, model="m") as remote:
        expected = local.rewrite(QUESTIONS)
        results = remote.rewrite(QUESTIONS)
        assert [result.record() for result in results] == [result.record() for result in expected]
        assert not any(result.failure for result in results)
        with EnvironmentClient(settings.client) as client:
            later = remote.rewrite(QUESTIONS, turn=2, client=client)
            assert [(result.turn, result.text) for result in later] == [
                (2, result.text) for result in local.rewrite(QUESTIONS, turn=2, client=client)
            ]
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["rewrite", str(exported), "-q", QUESTIONS[0], "--turn", "1", "--endpoint", url, "--model", "m"])
    assert not end.value.code
    printed, record = json.loads(capsys.readouterr().out), expected[0].record()
    assert {key: printed[key] for key in record} == record


def prompted(body):
    return f"Sure! <think>{len(body['messages'])}</think><rewrite>{last_user(body).split()[-1]}</rewrite>"


def test_another_model_is_prompted_as_in_an_evaluation(write_settings, run_app, tmp_path):
    """Preambles are skipped, an answer that cannot be read is sent back once, and of a conversation the newest words
    are shown."""
    prompt = yaml.safe_load((tmp_path / "prompt.yaml").read_text()) | {"question": "{history}{question}"}
    (tmp_path / "prompt.yaml").write_text(json.dumps(prompt))
    server = ChatServer(prompted)
    config = write_settings(**{"rollout.history_tokens": 2})
    history = [
        {"role": "user", "content": "what helps my head"},
        {"role": "assistant", "content": "triptan tablets daily"},
    ]
    with serving(run_app, server) as url, Rewriter.from_pretrained(config, endpoint=url, model="m") as rewriter:
        server.script.append({"content": "<rewrite>"})
        result = rewriter.rewrite("what helps my head")
        assert (result.text, result.failure, len(server.bodies)) == ("for.", None, 2)
        searched = rewriter.rewrite(["lower cholesterol", "too much blood"], turn=2)
        assert [(result.turn, result.failure) for result in searched] == [(2, None)] * 2
        assert "Found: About" in last_user(server.bodies[-1])

        async def in_a_notebook():
            return rewriter.rewrite("in the blood"), await rewriter.arewrite("in the blood")

        assert len({result.text for result in asyncio.run(in_a_notebook())}) == 1
        rewriter.rewrite("and the blood", history=history, turn=2)
    prompts = {
        entry["content"] for body in server.bodies for entry in body["messages"] if "and the blood" in entry["content"]
    }
    assert prompts == {"Assistant: triptan tablets\nand the blood"}


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_does_not_come_is_a_failure_of_that_question(write_settings, run_app):
    server = ChatServer(prompted)
    with serving(run_app, server) as url:
        config = LlmConfig(model="m", base_url=url, cache=None, concurrency=1)
        with Rewriter.from_pretrained(write_settings(), endpoint=config) as rewriter:
            server.script += [(400, {}), (422, {}), None]
            *refused_ones, answered = rewriter.rewrite(["what helps my head", "too much sugar", "bleeding gums"])
            for result, reason in zip(refused_ones, ("HTTP 400", "HTTP 422"), strict=True):
                assert (result.failure, result.text) == (reason, result.question.text)
            assert answered.failure is None
            server.script += [(400, {})]
            assert rewriter.rewrite("what helps my head", turn=2).failure == "no turn to go on from"
            server.always = lambda body: (401, {})
            with refused(ConfigError, url):
                rewriter.rewrite("bleeding gums")
    with (
        Rewriter.from_pretrained(write_settings(), endpoint="http://127.0.0.1:1/v1", model="m") as rewriter,
        refused(EngineUnavailableError),
    ):
        rewriter.rewrite("bleeding gums")


def test_a_question_that_stops_keeps_its_ranking_and_is_not_asked_again(settings, write_settings, run_app):
    """A stop in turn 1 searches the question; one in turn 2 keeps the ranking, unless more documents are asked for."""

    def answer(body):
        prompt = last_user(body)
        if "common pills" in prompt:
            return "<stop/>"
        first = "already the best query" in prompt
        return "<think></think><rewrite>headache</rewrite>" if first else "<think></think><stop/>"

    name = write_settings(**{"rewriter.stop": True, "rollout.branching": [1, 1, 1], "reward.turn_weights": [1] * 3})
    server = ChatServer(answer)
    with (
        serving(run_app, server) as url,
        EnvironmentClient(settings.client) as client,
        Rewriter.from_pretrained(name, endpoint=url, model="m", turn=3) as rewriter,
    ):
        counted = Counted(client)
        stopped, raw = rewriter.search(["my head hurts", "common pills"], counted)
        assert [len(plans) for plans in counted.batches] == [2]
        assert [(turn.rewrite.turn, turn.rewrite.stopped) for turn in stopped.turns] == [(1, False), (2, True)]
        assert stopped.ranking == stopped.turns[0].ranking
        assert {hit.id for hit in stopped.ranking} == {"aspirin", "triptan"}
        assert (stopped.rewrite.plan, stopped.rewrite.rewrites) == (stopped.turns[0].rewrite.plan, ())
        assert [(turn.rewrite.turn, turn.rewrite.text) for turn in raw.turns] == [(1, "common pills")]
        assert raw.failure is None
        assert len(server.bodies) == 3
        counted.batches.clear()
        rewriter.search("my head hurts", counted, k=30)
        assert [plans[0].k for plans in counted.batches] == [10, 30]


class Counted:
    """A client that keeps the plans of each call."""

    def __init__(self, client):
        self.client, self.batches, self.info = client, [], client.info

    def search(self, plans, **options):
        self.batches.append(plans)
        return self.client.search(plans, **options)


def test_a_policy_that_stops_before_any_search_says_that_nothing_was_searched(settings, tmp_path):
    """From its run and from its export, whose override searches the question again."""
    links = [("\n", (OPEN,), None), (OPEN, ("<stop/>",), None), ("<stop/>", (CLOSE,), None), (CLOSE, (), None)]
    stopping = str(save_chain(tmp_path / "stops", [OPEN, CLOSE, "<stop/>"], links))
    config = change(settings, **{"rewriter.stop": "answer", "reward.kind": "answer", "policy.model": stopping})
    run, export = save_run(config, tmp_path / "runs" / "stops", turn=2), tmp_path / "export"
    export_to_folder(run, export, merge_lora=True, without_evaluation=True, licence="mit")
    with EnvironmentClient(config.client) as client:
        counted = Counted(client)
        for folder in (run, export):
            with Rewriter.from_pretrained(folder, turn=2) as rewriter:
                result = rewriter.search("headache", counted, k=50)
                (turn,) = result.turns
                assert (result.ranking, result.failure) == (None, None)
                assert (turn.rewrite.stopped, turn.rewrite.unsearched) == (True, True)
                rewrite = rewriter.rewrite("headache", client=counted)
                assert (rewrite.text, rewrite.failure, rewrite.record()["unsearched"]) == ("headache", None, True)
        assert counted.batches == []
        with Rewriter.from_pretrained(export, settings=["rewriter.stop=true"]) as searching:
            assert {hit.id for hit in searching.search("headache", client).ranking} == {"aspirin", "triptan"}
