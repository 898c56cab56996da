"""Raw questions beside published figures, in every environment of a spec."""

import pytest
from querylect.configs.load import write_yaml
from querylect.data import published as published_scores
from querylect.data.published import Reference
from querylect.eval.environments import retriever_name
from querylect.eval.spec import figures

from ..command import end

pytestmark = pytest.mark.model


@pytest.mark.parametrize(("value", "status", "code"), [(None, "no figure is published", 0), (0.9, "wrong", 1)])
def test_every_environment_of_a_spec_is_compared(
    lessons, lesson_url, tmp_path, monkeypatch, capsys, value, status, code
):
    published = [] if value is None else [Reference("lessons", "bm25", "test", value, "a paper")]
    monkeypatch.setattr(published_scores, "references", lambda: tuple(published))
    index = {"env": {"index": lessons.index}}
    spec = {
        "datasets": {"mine": lessons.dataset.model_dump()},
        "environments": {"served": {"urls": {"mine": [lesson_url]}}, "local": index},
        "limit": 2,
    }
    (tmp_path / "spec.yaml").write_text(write_yaml(spec))
    assert end("data", "baselines", str(tmp_path / "spec.yaml")) == code
    first, second = capsys.readouterr().out.splitlines()
    for sentence, name in ((first, "served"), (second, "local")):
        assert sentence.startswith(f"{name} on mine: ndcg@10 0.")
        assert "over 5 test questions" in sentence, "the whole split, whatever limit says"
        assert status in sentence


def test_ragbench_figures_are_per_part_and_a_reranked_retriever_is_another():
    values = {"covidqa/1": 0.5, "covidqa/2": 0.3, "cuad/1": 0.9, "emanual/1": 0.6}
    means = figures("x", "ragbench", "bm25", "test", values)
    by_dataset = {figure.dataset: (figure.value, figure.questions) for figure in means}
    assert by_dataset["ragbench/covidqa"] == (0.4, 2)
    assert by_dataset["ragbench"] == (0.5, 3), "the mean of parts, without CUAD"
    assert retriever_name({"name": "bm25"}) == "bm25"
    assert retriever_name({"name": "bm25", "rerank": {"model": "m"}}) != "bm25"
