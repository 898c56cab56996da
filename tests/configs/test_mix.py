"""Configs of several environments: what a member inherits, what is written back, what is refused, and `--env`."""

import pytest
import yaml
from querylect.configs.load import dump_config, load_config
from querylect.configs.schema import RunConfig, chosen, environments, only
from querylect.errors import ConfigError

from ..command import end
from ..raising import refused

MIX = """
name: two
env:
  dataset: {path: data/shared}
  index: indexes/bm25
  port: 100
client: {deadline: 7.0}
rewriter: {name: explore, keep_question_weight: 0.5}
mix:
  environments:
    bm25: {weight: 3.0}
    minilm:
      env: {retriever: all-minilm-l6-v2, index: indexes/minilm, dataset: {path: data/own}}
      client: {urls: ["http://127.0.0.1:9"]}
      rewriter: {name: direct}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mix.yaml"
    file.write_text(MIX)
    return str(file)


def test_a_member_says_only_what_differs(path, tmp_path):
    config = load_config(path)
    bm25, minilm = environments(config).values()
    assert (bm25.env, bm25.client, bm25.rewriter) == (config.env, config.client, config.rewriter)
    assert (minilm.env.retriever, minilm.env.index, minilm.env.port) == ("all-minilm-l6-v2", "indexes/minilm", 100)
    assert minilm.env.dataset.path == "data/own"
    assert (minilm.client.urls, minilm.client.deadline) == (["http://127.0.0.1:9"], 7.0)
    assert (minilm.rewriter.name, minilm.rewriter.keep_question_weight) == ("direct", 0.5)
    assert [config.mix.environments[name].weight for name in ("bm25", "minilm")] == [3.0, 1.0]
    assert bm25.mix is minilm.mix is None
    assert minilm.train == config.train
    changed = environments(load_config(path, ["env.port=9", "env.dataset.path=elsewhere"]))
    assert [member.env.port for member in changed.values()] == [9, 9]
    assert [member.env.dataset.path for member in changed.values()] == ["elsewhere", "data/own"]
    (tmp_path / "written.yaml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "written.yaml")) == config


def test_one_environment_is_chosen_by_its_name(path):
    config, plain = load_config(path), RunConfig()
    assert environments(plain) == {"": plain}
    with refused(ConfigError, "--env", "'bm25'"):
        chosen(plain, "bm25")
    assert only(config, "minilm").env.retriever == "all-minilm-l6-v2"
    assert list(chosen(config, None)) == ["bm25", "minilm"]
    with refused(ConfigError, "--env", "'mini'", "bm25, minilm"):
        only(config, "mini")
    with refused(ConfigError, "bm25, minilm", "--env NAME"):
        only(config, None)


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("mix.environments.minlm.weight=2.0", ["'minlm' in mix.environments", "bm25, minilm"]),
        ("mix.environments.minilm.wieght=2.0", ["mix.environments.NAME.weight?"]),
        ("mix.environments.minilm.weight=0.0", ["minilm.weight is 0.0", "greater than 0"]),
        ("mix.environments.Mini-LM={weight: 1.0, env: {index: x}}", ["Mini-LM"]),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_name(path, override, facts):
    with refused(ConfigError, *facts):
        load_config(path, [override])


def test_index_build_builds_every_index_or_the_one_that_is_named(tmp_path, capsys):
    from querylect.data.beir import save_beir
    from querylect.data.types import Dataset, Document, Question, Split

    split = Split([Question("q", "which metal")], {"q": {"d": 1}})
    save_beir(Dataset("d", [Document("d", "Polonium", "a metal")], {"test": split}), tmp_path / "data")
    plain = {
        "env": {"dataset": {"path": str(tmp_path / "data")}, "index": str(tmp_path / "one")},
        "mix": {"environments": {"a": {}, "b": {"env": {"index": str(tmp_path / "two"), "engine": "rank_bm25"}}}},
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(plain))

    def run(*arguments):
        assert end("index", *arguments, tmp_path / "mix.yaml") == 0
        return capsys.readouterr().out

    assert run("build", "--env", "b") == f"{tmp_path / 'two'}: 1 documents\n"
    assert not (tmp_path / "one").exists()
    assert run("build", "--overwrite") == f"{tmp_path / 'one'}: 1 documents\n{tmp_path / 'two'}: 1 documents\n"
    assert run("verify").count("every file as its meta.json says") == 2
