"""User-supplied prompts of methods: what a model gets, and what is refused before any call."""

import json

import pytest
from querylect.configs.yaml12 import parse_yaml
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.llms.access import Llm
from querylect.methods.methods import METHODS, make_method
from querylect.methods.runner import Runner
from querylect.methods.wording import COMMON, STAGES
from querylect.rewriters.card import RetrieverCard

from ..method_doubles import ByStage, Shelf, doc, every_placeholder, run
from ..pages import blocks
from ..raising import refused

QUESTION = Question("q", "Who tamed {the} red dog?", ("Ann", "Bob"))
BM25 = RetrieverCard("bm25", "bm25")
HYPOTHESIS = {
    "discriminating_features": ["red {guess}"], "reasoning": "so", "confirming_evidence": ["tamers"],
    "best_guess": "A", "best_guess_text": "Ann",
}  # fmt: skip
ANSWERS = {
    "hcqr.formulator": json.dumps(HYPOTHESIS),
    "hcqr.rewriter": "Query 1: a\nQuery 2: b\nQuery 3: c",
    "multi_query.rewriter": "Sub-query 1: a\nSub-query 2: b\nSub-query 3: c",
    "chr.hypotheses": '{"H_plus": "Ann", "H_minus": "Bob"}',
    "csqe.pick": '"text of d1"',
    "misknow.judge": '{"thought": "t", "judge": true, "missing_knowledge": ["m"], "query": ["q2"]}',
    "migres.filter": '{"passages": [1]}',
    "migres.extract": '{"pieces": [{"passage": 1, "information": "i"}]}',
    "migres.judge": '{"sufficient": false, "missing": ["m"]}',
    "migres.queries": '{"queries": ["q2"]}',
    **{f"{name}.rewriter": "<think></think><rewrite>a</rewrite>" for name in ("general", "explore", "direct", "small")},
}


def own_words(name):
    """A text for every stage of a method, with all placeholders."""
    return {stage: every_placeholder(f"{name}.{stage}", (*COMMON, *fields)) for stage, fields in STAGES[name].items()}


@pytest.fixture
def worded(tmp_path):
    def make(name, texts, **settings):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(texts), encoding="utf-8")  # JSON is YAML
        return make_method(name, {"prompts": str(path), **settings}, BM25)

    return make


@pytest.mark.parametrize("name", sorted(STAGES))
def test_every_stage_of_every_method_is_asked_in_the_users_words(name, worded):
    model, table = ByStage(ANSWERS, "Answer: Ann"), Shelf({})
    table.table = type("All", (), {"get": lambda self, key, default: [doc("d1"), doc("d2", "text {b}")]})()
    method = worded(name, own_words(name))
    (ran,) = Runner(Llm(model), {"": table}, form="lines").run(method, [QUESTION])
    assert ran.outcome.failure == ""
    stages = {f"{name}.{stage}" for stage in STAGES[name]}
    assert set(model.prompts) == stages, "also where small models get other prompts"
    for stage, prompts in model.prompts.items():
        for prompt in prompts:
            user = prompt.messages[1]["content"]
            assert user.startswith("<question>Who tamed {the} red dog?\n<options>A. Ann\nB. Bob\n")
            assert prompt.version.startswith(f"{stage.partition('.')[2]}-")
            assert prompt.opening == ""
    fields = {stage: model.users(stage)[-1] for stage in model.prompts}
    if name == "hcqr":
        assert "<guess>Ann\n<reasoning>so\n<evidence>tamers\n<features>red {guess}" in fields["hcqr.rewriter"]
    if name == "misknow":
        assert "<draft>Answer: Ann" in fields["misknow.judge"]
        assert "<further>More was wanted on: m" in fields["misknow.reader"]
    if name == "migres":
        assert "<missing>- m\n<information>- i\n<previous>- Who tamed" in fields["migres.queries"]


def test_every_method_that_asks_has_its_stages_listed():
    asking = {name for name, method in METHODS.items() if "prompts" in method.settings.model_fields}
    assert asking == set(STAGES)


def test_a_repair_continues_the_users_prompt_and_the_versions_follow_the_text(worded):
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        return "hm" if len(prompts) == 1 else "Sub-query 1: a\nSub-query 2: b\nSub-query 3: c"

    method = worded("multi_query", {"rewriter": "Mine: {question}"})
    outcome, _ = run(method, answer, QUESTION, wiki=Shelf({"a": [doc("d")]}))
    assert prompts[0] == "Mine: Who tamed {the} red dog?"
    assert "missing part" in prompts[1]
    assert (outcome.failure, outcome.notes["repaired"]) == ("", True)
    versions = {tuple(worded("multi_query", {"rewriter": text}).versions) for text in ("{question}", "{question}!")}
    assert len(versions) == 2


def hcqr_with(prompts):
    """The prompts and the outcome of HCQR with the prompts of a file or a folder."""
    messages = []

    def answer(prompt):
        messages.append(prompt)
        return ANSWERS["hcqr.formulator" if len(messages) == 1 else "hcqr.rewriter"]

    method = make_method("hcqr", {"prompts": str(prompts)}, BM25)
    outcome, _ = run(method, answer, QUESTION, wiki=Shelf({"a": [doc("d")]}))
    return messages, outcome


def test_a_folder_has_a_file_for_each_stage_and_other_stages_stay(tmp_path):
    (tmp_path / "rewriter.txt").write_text('{guess}? {question} {{name}} {"json": 1}', encoding="utf-8")
    messages, _ = hcqr_with(tmp_path)
    assert "Analyze the question with care" in messages[0]
    assert messages[1] == 'Ann? Who tamed {the} red dog? {name} {"json": 1}'


@pytest.mark.parametrize(
    ("name", "texts", "facts"),
    [
        ("hcqr", {"rewriter": "{question}"}, ["rewriter", "{guess}"]),
        ("hcqr", {"formulator": "Answer."}, ["formulator", "{question}"]),
        ("misknow", {"judge": "{question} {passages}"}, ["judge", "{draft}"]),
        ("chr", {"hypotheses": "{question} {letter}"}, ["{letter}", "{{letter}}", "{options}"]),
        ("chr", {"rewriter": "{question}"}, ["'rewriter'", "hypotheses"]),
        ("chr", {"hypotheses": ["{question}"]}, ["chr"]),
        ("chr", {}, ["chr"]),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(worded, name, texts, facts):
    with refused(ConfigError, name, *facts):
        worded(name, texts)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with refused(ConfigError, str(tmp_path / "none.yaml")):
        make_method("chr", {"prompts": str(tmp_path / "none.yaml")}, None)


def test_the_example_of_the_page_runs(tmp_path):
    (text,) = [block.text for block in blocks("methods.md") if "formulator:" in block.text]
    assert set(parse_yaml(text)) == set(STAGES["hcqr"])
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    messages, outcome = hcqr_with(tmp_path / "mine.yaml")
    assert outcome.failure == ""
    assert QUESTION.text in messages[0]
    assert "Ann" in messages[1]
