"""Evaluation specs from files and overrides, and the messages for invalid ones."""

import pytest
from querylect.configs.evaluation import SpecConfig, dump_spec, is_spec, known_specs, load_spec
from querylect.configs.load import parse_yaml
from querylect.errors import ConfigError
from querylect.methods.methods import method_settings

from ..raising import refused

SPEC = """
name: two
datasets:
  one: {path: /data/one}
  two: {path: /data/two}
environments:
  bm25: {env: {retriever: bm25}}
  served:
    urls: {one: ["http://127.0.0.1:1"], two: ["http://127.0.0.1:2"]}
systems:
  prompted: {turns: 4}
  sampled: {samples: 8, temperature: 0.7, environments: [bm25]}
  trained: {run: runs/demo, checkpoint: best}
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    return str(tmp_path / "spec.yaml")


@pytest.mark.parametrize("name", [*known_specs(), None])
def test_a_spec_with_every_setting_written_out_can_be_given_again(name, path, tmp_path):
    spec = load_spec(name or path, ["environments.bm25.env.index=there/{dataset}"])
    (tmp_path / "again.yaml").write_text(dump_spec(spec))
    again = load_spec(str(tmp_path / "again.yaml"))
    assert again == spec
    has_index = {name: "index" in environment.env.model_fields_set for name, environment in again.environments.items()}
    assert has_index.pop("bm25")
    assert not any(has_index.values())


def test_a_spec_is_told_from_a_run(path, tmp_path):
    (tmp_path / "run.yaml").write_text("name: run\ntrain: {steps: 1}\n")
    assert is_spec(path)
    assert is_spec("grid")
    assert not is_spec(str(tmp_path / "run.yaml"))
    assert not is_spec("demo")


def test_overrides_reach_what_the_spec_names(path):
    spec = load_spec(path, ["systems.prompted.turns=3", "limit=5", "environments.bm25.env.engine=rank_bm25"])
    assert (spec.systems["prompted"].turns, spec.limit) == (3, 5)
    assert spec.environments["bm25"].env.engine == "rank_bm25"
    assert load_spec("grid", ["datasets.hpo.path=there"]).datasets["hpo"].path == "there"
    more = load_spec(path, ["systems.again={rewriter: {name: explore}}", "systems.again.turns=2"])
    assert more.systems["again"].turns == 2


URLS = [f"environments.bm25.{setting}" for setting in ("client.urls", "urls", "datasets")]


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("systems.trainde.turns=2", ["'trainde' in systems", "prompted, sampled, trained"]),
        ("systems.trained.trns=2", ["systems.NAME.turns?"]),
        ("metrics=[ndcg@100]", ["100 documents", "depth is 10"]),
        ("metrics=[err@10]", ["metric 'err@10'", "r-precision"]),
        ("baselines=[nobody]", ["baselines", "'nobody'", "raw, first_titles, rm3, weighted_words"]),
        ("parts=[three]", ["parts", "'three'", "one, two"]),
        ("systems.sampled.environments=[served, bm52]", ["systems.sampled.environments", "'bm52'"]),
        ("environments.bm25.env.dataset={path: hpo}", ["`datasets`", "from env"]),
        ('environments.bm25.client.urls=["http://x"]', ["has 2", *URLS]),
        ("systems.raw={}", ["the name 'raw'"]),
        ("systems.trained.policy={model: x}", ["run and policy"]),
        ("systems.prompted.checkpoint=best", ["checkpoint is 'best'", "run"]),
        ("systems.rm3={training_free: rm3, run: runs/a, turns: 3}", ["run and training_free", "name one"]),
    ],
)
def test_a_mistake_is_told_with_what_to_do(path, override, facts):
    with refused(ConfigError, *facts):
        load_spec(path, [override])


def test_writers_of_passages_or_several_queries_have_room_by_default():
    systems = {
        "passage": {"rewriter": {"name": "hyde"}},
        "queries": {"rewriter": {"name": "hcqr"}},
        "versions": {"rewriter": {"name": "multi_query"}},
        "short": {"rewriter": {"name": "hyde"}, "rollout": {"max_new_tokens": 40}},
        "keywords": {"rewriter": {"name": "explore"}},
        "shown": {"rewriter": {"name": "query2doc"}, "rollout": {"documents": 3}},
    }
    values = {"datasets": {"a": None}, "environments": {"x": {}}, "systems": systems, "training_free": []}
    spec = SpecConfig.model_validate(values)
    tokens = {name: (system.rollout or spec.rollout).max_new_tokens for name, system in spec.systems.items()}
    method = method_settings("hcqr", {}).max_tokens
    long = dict.fromkeys(("passage", "queries", "versions", "shown"), method)
    assert tokens == {**long, "short": 40, "keywords": 64}
    assert spec.systems["shown"].rollout.documents == 3
    assert SpecConfig.model_validate(parse_yaml(dump_spec(spec))) == spec, "the written spec is the same evaluation"
    fixed = SpecConfig.model_validate({**values, "rollout": {"max_new_tokens": 32}})
    assert fixed.systems["passage"].rollout is None
