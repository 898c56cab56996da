"""QB-RAG as a served retriever: against a brute force over the questions, with every plan, and what is refused."""

import json

import pytest
from querylect.configs.schema import QuestionsConfig
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.index import open_index
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.presets import questions_settings
from querylect.envs.retrievers.open import open_retriever, verify_indexes
from querylect.envs.retrievers.qb_rag import open_question_index
from querylect.envs.schemas import Step
from querylect.errors import IndexFolderError
from querylect.questions.index import write_question_index
from querylect.rewriters.levels import query_form
from querylect.rewriters.retriever_info import RetrieverInfo

from ..encoders import save_bert
from ..question_models import corpus, save_corpus  # noqa: F401 (a fixture)
from ..raising import refused

VETTED = {
    "What helps when my head hurts?": ["aspirin", "triptan"],
    "Is aspirin good for a headache?": ["aspirin"],
    "What is aspirin for?": ["aspirin"],
    "What stops a migraine?": ["triptan"],
    "What lowers the sugar in the blood?": ["insulin"],
    "Why did sailors bleed from the gums?": ["citrus"],
    "Warum bin ich so müde?": ["fremd"],
}


def add_questions(env, tmp_path, vetted=VETTED):
    """A question index of these questions, without a model."""
    file = tmp_path / "vetted.jsonl"
    rows = [{"question": text, "contents": contents} for text, contents in vetted.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_question_index(QuestionsConfig(), env, env.question_index.folder, add=file)


@pytest.fixture
def served(tmp_path, corpus):  # noqa: F811
    add_questions(corpus, tmp_path)
    build_index(corpus)
    return corpus


def changed(env, **changes):
    return env.model_copy(update={"question_index": env.question_index.model_copy(update=changes)})


def test_an_environment_ranks_by_questions_and_rewards(served):
    environment = Environment.open(served)
    retriever = RetrieverInfo.from_service(environment.info().retriever)
    assert (retriever.name, retriever.kind) == ("qb-rag", "questions")
    assert "7 questions that were written for the documents beforehand" in retriever.trained
    assert retriever.trained.endswith("and it knows no synonyms."), "what ranks the questions is said too"
    assert query_form(retriever)["kinds"] == ["questions"]
    plan = SearchPlan.of("my head hurts and I have a headache", k=5)
    gums = Step(question_id="q-gums", plan=SearchPlan.of("bleed from the gums"))
    head, gums = environment.step([Step(question_id="q-head", plan=plan), gums])
    assert [hit.id for hit in head.ranking] == ["aspirin", "triptan"]
    assert 0.5 < head.reward < gums.reward == 1.0


PROBES = [
    [("what helps when my head hurts", 1.0)],
    [("sugar in the blood", 1.0), ("headache", 0.4)],
    [("headache head", 1.0), ("aspirin", -2.0)],
    [("müde", 1.0), (" ", 1.0)],
    [("nothing of this is there", 1.0)],
]


def brute_force(env, terms, k):
    """Rank every question in the environment of the questions, then take the contents in that order."""
    folder = open_question_index(env.question_index.folder)
    answers = {}
    for answer in folder.answers():
        answers.setdefault(answer.question, []).append(answer.content)
    index = open_index(env.question_index.index)
    probe = Probe(terms=tuple(Term(text=text, weight=weight) for text, weight in terms))
    (ranked,) = open_retriever(index, questions_settings(env)).rank([probe], [len(index.documents)])
    scores = {}
    for position, score in zip(ranked.documents.tolist(), ranked.scores.tolist(), strict=True):
        contents = answers[index.documents.id(position)]
        for content in sorted(contents, key=lambda name: -sum(name in row for row in answers.values())):
            scores.setdefault(content, score)
    return dict(list(scores.items())[:k])


@pytest.mark.parametrize("base", ["bm25", pytest.param("dense", marks=pytest.mark.model)])
def test_every_plan_is_ranked_as_by_brute_force(served, tmp_path, base):
    env = served
    if base == "dense":
        model = save_bert(tmp_path / "model")
        env = changed(env, retriever=model, index=str(tmp_path / "dense-questions"))
        env = env.model_copy(update={"index": str(tmp_path / "dense")})
        build_index(env)
    environment = Environment.open(env)
    for k in (1, 3, 6):
        plans = [
            SearchPlan(probes=(Probe(terms=tuple(Term(text=text, weight=weight) for text, weight in terms)),), k=k)
            for terms in PROBES
        ]
        for terms, ranking in zip(PROBES, environment.rank(plans), strict=True):
            expected = brute_force(env, terms, k)
            assert [hit.id for hit in ranking] == list(expected), terms
            assert [hit.score for hit in ranking] == pytest.approx(list(expected.values()))
    (nothing,) = environment.rank([SearchPlan.of("statin", k=6)])
    assert "word" not in [hit.id for hit in nothing], "a content without a question is never found"


def test_questions_that_changed_are_refused_until_the_index_is_built_again(served, tmp_path):
    verified = verify_indexes(served)
    assert list(verified) == [served.question_index.index, served.index]
    more = {**VETTED, "What is statin good for?": ["word"]}
    add_questions(served, tmp_path, more)
    with refused(IndexFolderError, served.question_index.index, served.question_index.folder):
        Environment.open(served)
    build_index(served, overwrite=True)
    verify_indexes(served)
    assert [hit.id for hit in Environment.open(served).rank([SearchPlan.of("statin")])[0]] == ["word"]
    file = tmp_path / "of-questions" / "documents.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with refused(IndexFolderError, "documents.bin"):
        verify_indexes(served)
