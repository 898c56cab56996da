"""Configs: which ones load, which ones are refused, and what the error names."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.evaluation import SpecConfig
from querylect.configs.load import (
    dump_config,
    known_configs,
    load_config,
    parse_yaml,
    validated,
    write_yaml,
)
from querylect.configs.schema import LoraConfig, RunConfig
from querylect.configs.section import as_name
from querylect.errors import ConfigError

from ..raising import refused

pytestmark = pytest.mark.server


@pytest.fixture
def save_yaml(tmp_path):
    """A function that writes a YAML file and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refusal(path: str | None, *overrides: str) -> str:
    with refused(ConfigError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", known_configs())
def test_a_packaged_config_survives_a_round_trip_and_chooses_sensible_sizes(name, save_yaml):
    config = load_config(name, [])
    assert load_config(save_yaml(dump_config(config)), []) == config
    rollout, train = config.rollout, config.train
    assert rollout.earlier_tokens(len(rollout.branching)) + 512 <= rollout.max_prompt_tokens, "room for the question"
    if name != "tiny":  # after two steps that teach nothing, no policy or turn is better than another
        assert 0 < train.validate_steps <= train.steps
        assert train.validation_questions >= 200, "fewer hardly tell two turns apart"
    if name.startswith("paper_"):  # no GPU holds what the engine transformers would keep of answers by the hundred
        assert rollout.engine == "vllm"


def test_a_search_gives_what_the_metric_looks_at_and_the_next_turn_shows():
    def depth(*overrides):
        return load_config("demo", overrides).search_depth

    assert depth() == depth("reward.metric=mrr@5") == 10
    assert depth("reward.metric=recall@100") == 100
    assert depth("reward.metric=ndcg@20", "rollout.documents=30") == 30
    assert depth("reward.answer.top=40") == 10
    assert depth("reward.kind=answer", "reward.answer.top=40") == 40


def test_overrides_win_over_the_file_and_later_over_earlier(save_yaml):
    path = save_yaml("train: {steps: 3, questions_per_step: 5}\npolicy: {lora: null}\n")
    overrides = ["train.steps=4", "train.steps=7", "train.learning_rate=1e-5", "rollout.branching=[2,2]"]
    overrides += ["client.urls=[http://a:1, http://b:2]", "policy.lora.r=8", "env.model="]
    config = load_config(path, overrides)
    assert (config.train.steps, config.train.questions_per_step) == (7, 5)
    assert config.train.learning_rate == 1e-5
    assert config.rollout.branching == [2, 2]
    assert config.client.urls == ["http://a:1", "http://b:2"]
    assert config.policy.lora == LoraConfig(r=8)
    assert config.env.model is None


def test_yaml_words_that_look_like_something_else_are_text(save_yaml):
    config = load_config(save_yaml("name: no\noutput: 1:30\nseed: 010\n"), ["env.name=1e-5x"])
    assert (config.name, config.output, config.seed, config.env.name) == ("no", "1:30", 10, "1e-5x")


def test_a_syntax_error_names_file_line_and_column(save_yaml):
    path = save_yaml("train:\n  steps: 5\n  credit: [turn\nname: x\n")
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert "line 4, column 5" in message


@pytest.mark.parametrize("name", ["x\ntouch y", "$(id)", "", "..", "-rf", "a/b", "é"])
def test_a_name_that_a_shell_or_a_path_would_read_in_another_way_is_refused(name):
    with refused(ConfigError, f"name is {json.dumps(name, ensure_ascii=False)}"):
        validated(RunConfig, {"name": name}, "here")
    with refused(ConfigError, "datasets"):
        validated(SpecConfig, {"datasets": {name: {}}, "environments": {"bm25": {}}}, "here")


@given(st.text())
def test_every_text_becomes_a_name(text):
    assert validated(RunConfig, {"name": as_name(text)}, "here").name


def test_a_tilde_is_the_home_folder_in_every_path_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = load_config("demo", ["output=~/runs", "env.index=~/index"])
    assert config.run_folder == tmp_path / "runs" / "demo"
    assert not config.env.has_index
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "meta.json").touch()
    assert config.env.has_index
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("content", [b"name: \xff\n", b"name: \x00\n", b"name: !!python/object/apply:os.mkdir [a]\n"])
def test_what_is_not_yaml_of_plain_values_is_refused(content, tmp_path):
    (tmp_path / "run.yaml").write_bytes(content)
    with refused(ConfigError, tmp_path / "run.yaml"):
        load_config(str(tmp_path / "run.yaml"))


@pytest.mark.parametrize(
    ("text", "unknown", "nearest"),
    [
        ("train: {learnig_rate: 1e-5}", "train.learnig_rate", "train.learning_rate"),
        ("learning_rate: 1e-5", "learning_rate", "train.learning_rate"),
        ("policy: {lora: {rank: 3, alhpa: 1.0}}", "policy.lora.alhpa", "policy.lora.alpha"),
        ("train: {temperature: 0.5}", "train.temperature", "rollout.temperature"),
    ],
)
def test_an_unknown_key_names_the_nearest_one_in_full(text, unknown, nearest, save_yaml):
    path = save_yaml(text)
    names_by_line = [set(re.findall(r"\w+(?:\.\w+)*", line)) for line in refusal(path).splitlines()]
    assert any({unknown, nearest} <= names for names in names_by_line)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("train: {beta: -1.0}", ["train.beta is -1.0", "greater than or equal to 0"]),
        ("train: {credit: leaf}", ['train.credit is "leaf"', "'turn' or 'trajectory'"]),
        ("client: {urls: 5}", ["client.urls", "is 5", "'local'"]),
        ("reward: {metric: map@10}", ["reward.metric", "map@10", "ndcg|recall|mrr"]),
        ("rollout: {branching: [4, 0]}", ["rollout.branching.1 is 0", "greater than or equal to 1"]),
        ("rollout: {branching: [2, 2, 2]}", ["reward.turn_weights", "2 weights", "3 turns"]),
        ("train: {loss_type: cispo}", ["train.epsilon_high", "None", "'cispo'"]),
        ("mix: {environments: {a: {}}}\nreward: {kind: answer}", ["reward.kind", "mix"]),
        ("rewriter: {query: native, keep_question_weight: 1.0}", ["rewriter.query", "rewriter.keep_question_weight=0"]),
        ("rewriter: {query: native, rewrite_weight: 0.6}", ["rewriter.query", "rewriter.rewrite_weight=1"]),
    ],
)
def test_a_wrong_value_says_file_key_value_and_expectation(text, facts, save_yaml):
    path = save_yaml(text)
    with refused(ConfigError, f"{path}: ", *facts):
        load_config(path)


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("train.steps", ["key=value"]),
        ("train.stps=5", ["train.stps;", "train.steps?"]),
        ("train={stps: 5}", ["train.stps;", "train.steps?"]),
        ("train.steps=[1", ["line 1"]),
        ("policy.lora=5", ["policy.lora is 5", "LoraConfig"]),
        ("mix.environments.a.weight=2", ["no 'a' in mix.environments, which has none"]),
    ],
)
def test_a_wrong_override_is_named(override, facts):
    with refused(ConfigError, *facts) as caught:
        load_config("demo", [override])
    assert str(caught.value).startswith(f"override {override!r}")


MISREAD = ["1e-5", "no", "~", "", "0o7", "1:30", "2026-11-21", "<<", "=", ".inf", "- a", "a: b", "0x1F", "1_000"]
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"))) | st.sampled_from(MISREAD)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs", "Cc"))), SCALARS | st.lists(SCALARS)))
def test_written_yaml_reads_back_equal_and_of_the_same_types(value):
    back = parse_yaml(write_yaml(value))
    assert repr(back) == repr(value)
