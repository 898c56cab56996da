"""The turn that won on validation is used; failures fall back to the question; invalid questions are refused."""

import asyncio

import pytest
from querylect.configs.load import dump_config
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.errors import ConfigError, RequestError
from querylect.export.export import export_to_folder
from querylect.export.exported import read_exported
from querylect.inference.rewriter import Rewriter
from querylect.inference.turns import RewriteResult

from ..command import end
from ..lessons import change
from ..raising import refused
from ..used import select_turn

pytestmark = pytest.mark.model

ASKED = ["my head hurts", "bleeding gums", "too much sugar"]


@pytest.fixture
def second(trained):
    """Settings of a run whose second turn won on validation, and its folder."""
    select_turn(trained[1], 2)
    return trained


def test_a_rewriter_of_two_turns_searches_and_asks_twice(second, rewriter, lessons):
    config, folder = second
    first = rewriter.rewrite(ASKED)
    with EnvironmentClient(config.client) as client:
        expected = [result.rewrite for result in Rewriter.from_pretrained(folder).search(ASKED, client, turns=2)]
        assert [result.turn for result in first] == [1, 1, 1]
        rewriter = Rewriter.from_pretrained(folder)
        assert rewriter.turn == 2
        assert rewriter.rewrite(ASKED) == expected, "through the service of the run"
        assert rewriter.rewrite(ASKED[0], client=client) == expected[0]
        assert [result.turn for result in expected] == [2, 2, 2]
        assert all("About" in result.continuation.branch.messages[-1]["content"] for result in expected), (
            "documents were shown"
        )
        assert rewriter.rewrite(ASKED, turn=1) == first
        assert Rewriter.from_pretrained(folder, turn=1).rewrite(ASKED) == first
        assert rewriter.search(ASKED[0], client).rewrite == expected[0]
        rewriter.close()

    local = change(config, **{"client.urls": "local", "env": lessons.model_dump(mode="json")})
    (folder / "config.yaml").write_text(dump_config(local))
    with Rewriter.from_pretrained(folder) as rewriter:
        assert rewriter.rewrite(ASKED) == expected, "through the index, in this process"
        assert asyncio.run(rewriter.arewrite(ASKED)) == expected


def test_an_export_says_its_turn_and_what_it_lacks_to_search(second, tmp_path):
    config, folder = second
    export_to_folder(folder, tmp_path / "out", merge_lora=True, without_evaluation=True, licence="mit")
    exported = read_exported(tmp_path / "out")
    assert exported.turn == 2
    assert exported.turn_reason == "best on 5 validation questions: ndcg@10 of turn 1 0.000, turn 2 1.000"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "The answer is that of turn 2 (best on 5 validation" in card
    assert "settings=['client.urls=[\"http://localhost:8765\"]']" in card
    alone = Rewriter.from_pretrained(tmp_path / "out")
    with refused(ConfigError, "turn 2", "client.urls", "turn=1"):
        alone.rewrite(ASKED[0])
    assert alone.rewrite(ASKED[0], turn=1).turn == 1
    served = Rewriter.from_pretrained(tmp_path / "out", settings=[f'client.urls=["{config.client.urls[0]}"]'])
    assert served.rewrite(ASKED[0]) == Rewriter.from_pretrained(folder).rewrite(ASKED[0])


def test_a_failed_answer_falls_back_to_the_question_and_says_so(failing, failing_run, capsys):
    config, folder = failing_run
    result = failing.rewrite("headache")
    assert (result.text, result.rewrites) == ("headache", ())
    assert result.plan == SearchPlan.of("headache", config.search_depth)
    assert result.failure
    with EnvironmentClient(config.client) as client:
        for turns in (1, 2):
            search_result = failing.search("headache", client, turns=turns)
            assert {hit.id for hit in search_result.ranking} == {"aspirin", "triptan"}
            assert search_result.failure == search_result.rewrite.failure
            assert [turn.ranking is None for turn in search_result.turns] == [True] * (turns - 1) + [False]
    assert end("rewrite", str(folder), "-q", "headache", "-q", "gums") == 0
    out, err = capsys.readouterr()
    assert out.count('"failure": null') == 0
    assert "2 of 2 answers failed, and the question itself is their text and plan" in err


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Heart defect", "defect heart"], "Heart defect"),
        (["Heart defect", "congenital heart defect"], "congenital heart defect"),
        (["a", "b", "a b"], "a b"),
        (["?", "!"], "?"),
    ],
)
def test_a_text_never_says_the_question_twice(texts, expected):
    plan = SearchPlan(probes=(Probe(terms=tuple(Term(text=text) for text in texts)),))
    assert RewriteResult(Question("", texts[0]), 1, plan, tuple(texts[1:])).text == expected


def test_what_is_no_question_is_named(rewriter):
    for question, fact in (
        (" \n", r"' \n'"),
        (None, "question 1 of 1"),
        ("\ud800", r"'\ud800'"),
        (["x", ""], "2 of 2"),
    ):
        with refused(RequestError, fact):
            rewriter.rewrite(question)
    assert rewriter.rewrite([]) == []
