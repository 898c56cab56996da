"""Configs of several environments: what a member inherits, what is written back, what is refused, and `--env`."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.load import dump_config, load_config
from querylect.configs.mix import chosen, environments, only
from querylect.configs.schema import RunConfig, filled_in, shortened
from querylect.errors import ConfigError

from ..command import end
from ..raising import refused

MIX = """
name: two
env:
  dataset: {kind: beir, path: data/shared}
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


def test_a_member_says_only_what_differs(path):
    config = load_config(path)
    bm25, minilm = environments(config).values()
    assert (bm25.env, bm25.client, bm25.rewriter) == (config.env, config.client, config.rewriter)
    assert (minilm.env.retriever, minilm.env.index, minilm.env.port) == ("all-minilm-l6-v2", "indexes/minilm", 100)
    assert (minilm.env.dataset.kind, minilm.env.dataset.path) == ("beir", "data/own")
    assert (minilm.client.urls, minilm.client.deadline) == (["http://127.0.0.1:9"], 7.0)
    assert (minilm.rewriter.name, minilm.rewriter.keep_question_weight) == ("direct", 0.5)
    assert [config.mix.environments[name].weight for name in ("bm25", "minilm")] == [3.0, 1.0]
    assert bm25.mix is minilm.mix is None
    assert minilm.train == config.train


def test_an_override_of_what_is_shared_reaches_the_members_also_after_a_round_trip(path, tmp_path):
    config = load_config(path)
    dumped = tmp_path / "written.yaml"
    dumped.write_text(dump_config(config))
    assert load_config(str(dumped)) == config
    for source in (path, str(dumped)):
        changed = environments(load_config(source, ["env.port=9", "env.dataset.path=elsewhere"]))
        assert [member.env.port for member in changed.values()] == [9, 9]
        assert [member.env.dataset.path for member in changed.values()] == ["elsewhere", "data/own"]
    overridden = load_config(path, ["mix.environments.bm25.env.port=5", "mix.environments.minilm.weight=2.5"])
    assert [member.env.port for member in environments(overridden).values()] == [5, 100]
    assert overridden.mix.environments["minilm"].weight == 2.5


VALUES = st.recursive(
    st.integers(0, 3) | st.none() | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
SECTION = st.fixed_dictionaries({"a": VALUES, "b": VALUES})


@given(SECTION, SECTION, SECTION)
def test_what_is_left_out_comes_back(env, client, overrides):
    """For complete sections, as a validated config writes them: both have the same keys at every level."""

    def like(base, value):
        if isinstance(base, dict) and isinstance(value, dict):
            return {key: like(base[key], value.get(key, base[key])) for key in base}
        return value

    member = {"weight": 1.0, "env": like(env, overrides), "client": like(client, overrides), "rewriter": {}}
    values = {"env": env, "client": client, "rewriter": {}, "mix": {"environments": {"x": member}}}
    assert filled_in(shortened(values)) == values


def test_without_a_mix_there_is_one_environment_and_it_is_the_config():
    config = RunConfig()
    assert environments(config) == {"": config}
    assert only(config, None) is config
    with refused(ConfigError, "--env", "'bm25'"):
        chosen(config, "bm25")


def test_one_environment_is_chosen_by_its_name(path):
    config = load_config(path)
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
        ("mix.environments={}", ["mix.environments is {}", "at least 1"]),
        ("mix.environments.Mini-LM={weight: 1.0, env: {index: x}}", ["Mini-LM"]),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_name(path, override, facts):
    with refused(ConfigError, *facts):
        load_config(path, [override])


def test_a_name_that_stands_twice_is_refused(tmp_path):
    file = tmp_path / "twice.yaml"
    file.write_text(MIX.replace("    minilm:", "    bm25:"))
    with refused(ConfigError, "line 12, column 5", '"bm25"'):
        load_config(str(file))


@pytest.mark.parametrize("command", ["serve", "index merge"])
def test_commands_on_one_environment_ask_for_its_name(command, path, capsys):
    assert end(*command.split(), path) == 2
    stderr = capsys.readouterr().err
    assert "bm25, minilm" in stderr
    assert "--env NAME" in stderr


def test_index_build_builds_every_index_or_the_one_that_is_named(tmp_path, capsys):
    from querylect.data.beir import save_beir
    from querylect.data.types import Dataset, Document, Question, Split

    split = Split([Question("q", "which metal")], {"q": {"d": 1}})
    save_beir(Dataset("d", [Document("d", "Polonium", "a metal")], {"test": split}), tmp_path / "data")
    plain = {
        "env": {"dataset": {"kind": "beir", "path": str(tmp_path / "data")}, "index": str(tmp_path / "one")},
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
