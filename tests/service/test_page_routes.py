"""The routes of the playground: which are open, which must be enabled, and what a trainer can never read."""

import base64
import hashlib
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from querylect.cli import main
from querylect.configs.load import dump_config
from querylect.configs.schema import PolicyConfig, RewriterConfig, RunConfig
from querylect.data.types import Question
from querylect.envs.environment import Environment
from querylect.envs.page.router import MAX_OPTIONS, MAX_QUESTION, PageRewrite
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app
from querylect.errors import CheckpointError, ModelError, RequestError
from querylect.inference.load import of_config, open_trained
from querylect.inference.rewriter import Rewriter
from querylect.inference.server import PageWriter

from ..raising import refused
from ..used import add_id


@pytest.fixture
def service(environment, small_environment, run_app):
    @contextmanager
    def start(token=None, writer=None, **changes):
        app = create_app(environment, small_environment.model_copy(update=changes), token, writer)
        with run_app(app) as url, httpx.Client(base_url=url, timeout=30) as http:
            yield http

    return start


def test_the_page_may_run_its_own_script_and_load_nothing(service):
    with service() as http:
        answer = http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag in ("script", "style"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"""https?://|(src|href)="(?!data:,)""", answer.text), "the page loads something"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|localStorage|cookie", answer.text)


def test_with_a_token_only_the_empty_page_is_open(service):
    with service(token="s3cret", playground=True) as http:
        assert http.get("/").status_code == 200
        closed = [
            http.get("/page/about"),
            http.get("/page/judgements", params={"question_id": "q-head"}),
            http.post("/page/rewrite", json={"question": "x"}),
        ]
        assert [answer.status_code for answer in closed] == [401] * 3
        http.headers["Authorization"] = "Bearer s3cret"
        assert http.get("/page/about").json() == {"judgements": True, "rewriter": None}


def test_judgements_that_wait_for_a_check_of_the_index_hold_up_nobody(service, environment, monkeypatch):
    """A file that was touched is read before documents are shown, which takes as long as the file is large."""
    checking, checked = threading.Event(), threading.Event()

    @contextmanager
    def intact():
        checking.set()
        assert checked.wait(30)
        yield

    with service(playground=True) as http:
        monkeypatch.setattr(environment, "intact", intact)
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(http.get, "/page/judgements", params={"question_id": "q-head"})
            try:
                assert checking.wait(30)
                assert http.get("/healthz", timeout=10).status_code == 200
            finally:
                checked.set()
            assert pending.result().status_code == 200


def test_judgements_are_shown_only_where_the_owner_says_so(service, caplog):
    with service() as http:
        assert http.get("/page/about").json() == {"judgements": False, "rewriter": None}
        refused = http.get("/page/judgements", params={"question_id": "q-hidden"})
    assert refused.status_code == 403
    assert "env.playground=true" in refused.json()["detail"]
    assert "withheld-judgement" not in refused.text
    assert "playground" not in caplog.text

    with service(playground=True) as http:
        judgements = http.get("/page/judgements", params={"question_id": "q-head"}).json()
        unknown = http.get("/page/judgements", params={"question_id": "q-nobody"})
        schema = http.get("/v1/openapi.json").text
    assert judgements["relevant"] == [
        {"id": "triptan", "grade": 2, "title": "About triptan"},
        {"id": "aspirin", "grade": 1, "title": "About aspirin"},
    ]
    assert unknown.status_code == 404
    assert "/page/" not in schema
    assert "env.playground is on" in caplog.text


def test_a_document_of_grade_0_is_not_shown_as_relevant(small_environment, run_app, tmp_path):
    folder = shutil.copytree(small_environment.dataset.path, tmp_path / "data")
    with (folder / "qrels" / "test.tsv").open("a") as judgements:
        judgements.write("q-head\tstatin\t0\n")
    dataset = small_environment.dataset.model_copy(update={"path": str(folder)})
    config = small_environment.model_copy(update={"dataset": dataset, "playground": True})
    environment = Environment.open(config)
    assert environment.judgements("q-head") == {"triptan": 2, "aspirin": 1, "statin": 0}
    assert environment.settings_hash != Environment.open(small_environment).settings_hash
    with run_app(create_app(environment, config)) as url:
        answer = httpx.get(f"{url}/page/judgements", params={"question_id": "q-head"}, trust_env=False).json()
    assert [document["id"] for document in answer["relevant"]] == ["triptan", "aspirin"]


class ScriptedWriter:
    """A rewriter with the same answer to every question, or an error."""

    name = "stand-in"

    def __init__(self, answer):
        self.answer, self.questions = answer, []

    def __call__(self, question, card, search):
        self.questions.append((question.text, *question.options, card["kind"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_generated_rewrite_is_a_plan_or_says_what_was_wrong(service):
    plan = SearchPlan.of("triptan")
    writer = ScriptedWriter(PageRewrite(text="…", plan=plan, think="why"))
    with service(writer=writer) as http:
        assert http.get("/page/about").json()["rewriter"] == "stand-in"
        rewrite = http.post("/page/rewrite", json={"question": "my head hurts"}).json()
        assert writer.questions == [("my head hurts", "bm25")]
        assert (rewrite["think"], rewrite["failure"]) == ("why", "")
        assert SearchPlan.model_validate(rewrite["plan"]) == plan
        writer.answer = PageRewrite(text="<b>", plan=None, failure="missing think")
        failed = http.post("/page/rewrite", json={"question": "x", "options": ["yes", "no"]}).json()
        assert writer.questions[-1] == ("x", "yes", "no", "bm25")
        assert (failed["text"], failed["plan"], failed["failure"]) == ("<b>", None, "missing think")


@pytest.mark.parametrize(
    ("error", "status", "fact"),
    [(ModelError("no weights here"), 500, "stand-in failed: no weights"), (RequestError("too long"), 422, "too long")],
)
def test_a_rewriter_that_fails_says_why(service, error, status, fact):
    with service(writer=ScriptedWriter(error)) as http:
        answer = http.post("/page/rewrite", json={"question": "x"})
        assert (answer.status_code, fact in answer.json()["detail"]) == (status, True)
        assert http.get("/readyz").status_code == 200


def test_without_a_rewriter_the_page_says_how_to_have_one(service):
    with service() as http:
        answer = http.post("/page/rewrite", json={"question": "x"})
        assert answer.status_code == 404
        assert "--rewriter" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        rb'{"question": ""}',
        rb'{"question": "\ud800"}',
        rb'{"question": "x", "options": ["\ud800"]}',
        b'{"question": "x", "options": ["%s"]}' % (b"y" * (MAX_QUESTION + 1)),
        b'{"question": "x", "options": [%s]}' % b",".join([b'"y"'] * (MAX_OPTIONS + 1)),
        rb'{"question": "x", "n": 2}',
        b"x",
    ],
)
def test_a_question_that_is_none_never_reaches_the_rewriter(service, body):
    writer = ScriptedWriter(PageRewrite("", None))
    with service(writer=writer) as http:
        answer = http.post("/page/rewrite", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert writer.questions == []


def test_one_rewrite_at_a_time_and_searches_go_on(service):
    started, finish = threading.Event(), threading.Event()

    class Slow(ScriptedWriter):
        def __call__(self, question, card, search):
            started.set()
            assert finish.wait(30)
            return self.answer

    with service(writer=Slow(PageRewrite("", None, failure="empty answer"))) as http:
        first = []
        thread = threading.Thread(
            target=lambda: first.append(httpx.post(f"{http.base_url}/page/rewrite", json={"question": "x"}, timeout=60))
        )
        thread.start()
        try:
            assert started.wait(30)
            busy = http.post("/page/rewrite", json={"question": "y"})
            assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
            searched = http.post("/v1/search", json={"plans": [SearchPlan.of("glucose").model_dump()]})
            assert searched.status_code == 200
        finally:
            finish.set()
            thread.join(30)
        assert first[0].status_code == 200


@pytest.fixture
def policy(tiny_policy):
    return RunConfig.model_validate(
        {
            "policy": PolicyConfig(model=str(tiny_policy), dtype="float32"),
            "rewriter": RewriterConfig(name="general", keep_question_weight=0.5),
            "rollout": {"max_new_tokens": 48},
        }
    )


def test_a_policy_is_loaded_once(policy, environment, monkeypatch):
    """The engine's ids are replaced, for a random policy never keeps the format; all else is real."""
    from querylect.rollouts.engines import open as loading
    from querylect.rollouts.engines.base import Completion
    from querylect.rollouts.engines.transformers import TransformersEngine

    loads = []
    load = loading.load_policy
    monkeypatch.setattr(loading, "load_policy", lambda *arguments: loads.append(1) or load(*arguments))
    writer = PageWriter(Rewriter(of_config("tiny", policy, None, None)))
    assert loads == [1]
    random = writer(Question("page", "my head hurts"), environment.card)
    assert random.plan is None
    assert random.failure

    def generate(engine, prompts, n, sampling):
        assert (n, sampling.temperature) == (1, 0.0)
        ids = engine.tokenizer("<think>why</think><rewrite>migraine</rewrite>")["input_ids"]
        return [[Completion([*ids, engine.tokenizer.eos_token_id], [], True)] for _ in prompts]

    monkeypatch.setattr(TransformersEngine, "generate", generate)
    rewrite = writer(Question("page", "my head hurts"), environment.card)
    assert loads == [1]
    assert [(term.text, term.weight) for term in rewrite.plan.probes[0].terms] == [
        ("my head hurts", 0.5),
        ("migraine", 1),
    ]
    assert "shorten the question" in writer(Question("page", "head " * 4000), environment.card).failure


def test_an_opening_is_given_to_the_policy_and_read_with_its_answer(policy, environment, monkeypatch):
    from querylect.rollouts.engines.base import Completion
    from querylect.rollouts.engines.transformers import TransformersEngine

    prompt_texts = []

    def generate(engine, prompts, n, sampling):
        prompt_texts.append(engine.tokenizer.decode(prompts[0]))
        return [[Completion(engine.tokenizer("migraine</rewrite>")["input_ids"], [], True)]]

    small = policy.model_copy(update={"rewriter": RewriterConfig(name="small", prompt="hpo")})
    writer = PageWriter(Rewriter(of_config("tiny", small, None, None)))
    monkeypatch.setattr(TransformersEngine, "generate", generate)
    rewrite = writer(Question("page", "my head hurts"), environment.card)
    assert prompt_texts[0].endswith("<think></think><rewrite>")
    assert rewrite.plan is not None
    assert [term.text for term in rewrite.plan.probes[0].terms] == ["migraine"]


def test_a_rewriter_of_two_stages_asks_a_model_first(policy, environment, service, run_app, monkeypatch):
    """Its hypothesis comes from an endpoint, its queries from the policy; without one the answer is a failure."""
    from querylect.rollouts.engines.base import Completion
    from querylect.rollouts.engines.transformers import TransformersEngine

    from ..chat_server import ChatServer, serving

    parts = {"discriminating_features": ["a"], "reasoning": "b", "confirming_evidence": ["c"]}
    parts |= {"best_guess": "sugar", "best_guess_text": "sugar"}

    def generate(engine, prompts, n, sampling):
        assert "Best guess at the answer: sugar" in engine.tokenizer.decode(prompts[0])
        ids = engine.tokenizer("glucose\nQuery 2: blood\nQuery 3: insulin")["input_ids"]
        return [[Completion(ids, [], True)]]

    server = ChatServer(lambda body: "who knows" if "my head" in str(body["messages"]) else json.dumps(parts))
    with serving(run_app, server) as url:
        settings = RewriterConfig.model_validate(
            {"name": "hcqr", "llm": {"model": "m", "base_url": url, "cache": None}}
        )
        staged = policy.model_copy(update={"rewriter": settings})
        writer = PageWriter(Rewriter(of_config("tiny", staged, None, None)))
        writer(Question("page", "what lowers it?"), environment.card)  # loads the policy, which samples to check itself
        monkeypatch.setattr(TransformersEngine, "generate", generate)
        with service(writer=writer) as http:
            first = http.post("/page/rewrite", json={"question": "what lowers it?", "options": ["insulin", "tea"]})
            plan = first.json()["plan"]
            assert [[term["text"] for term in probe["terms"]] for probe in plan["probes"]] == [
                ["glucose"],
                ["blood"],
                ["insulin"],
            ]
            none = http.post("/page/rewrite", json={"question": "my head"})
            assert none.json()["plan"] is None
            assert none.json()["failure"].startswith("first stage: ")
            assert http.post("/page/rewrite", json={"question": "what lowers it?"}).json()["plan"] is not None


def test_a_run_without_a_checkpoint_is_told_before_anything_is_served(policy, tmp_path):
    (tmp_path / "config.yaml").write_text(dump_config(policy))
    add_id(tmp_path)
    with refused(CheckpointError, tmp_path, "querylect train"):
        open_trained(str(tmp_path))


def test_serve_hands_the_rewriter_to_the_page(small_environment, tiny_policy, tmp_path, monkeypatch):
    from querylect.envs.server import serve as serving

    served = []
    monkeypatch.setattr(serving, "serve", lambda config, **more: served.append((config, more)))
    path = tmp_path / "policy.yaml"
    path.write_text(json.dumps({"policy": {"model": str(tiny_policy)}}))
    arguments = ["serve", "tiny", f"env.index={small_environment.index}", "env.playground=true"]
    for extra, name in (([], None), (["--rewriter", str(path)], str(path))):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, *extra])
        assert not stop.value.code
        config, more = served.pop()
        assert config.playground
        assert (more["writer"] and more["writer"].name) == name
        assert (more["extend"] is not None) == (name is not None)
