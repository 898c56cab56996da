"""An exported folder: its files, that its card is correct and its code works, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from querylect.configs.load import dump_config, load_config
from querylect.data.types import Question
from querylect.errors import CheckpointError, ConfigError
from querylect.export.export import export_to_folder, export_to_hub, refuse_lone_adapter
from querylect.export.exported import read_exported, settings_of
from querylect.export.source import BaseModelSource, base_of
from querylect.inference.rewriter import Rewriter
from querylect.rollouts.checkpoints import find_checkpoint
from querylect.rollouts.engines.base import Sampling

from ..exported import snippet
from ..lessons import change
from ..raising import refused
from ..tree_samplers import engine_of, tree_sampler_of

pytestmark = pytest.mark.model

MERGED = {"merge_lora": True}


@pytest.fixture(scope="module")
def folder(evaluated_run, tmp_path_factory) -> Path:
    """The run exported with whole weights; not to be changed."""
    target = tmp_path_factory.mktemp("folder") / "rewriter"
    assert export_to_folder(evaluated_run, target, **MERGED) == str(target)
    return target


def test_an_export_is_a_plain_model_folder_that_says_what_was_measured(folder, evaluated_run):
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "README.md", "chat_template.jinja", "config.json", "generation_config.json",
        "model.safetensors", "prompt.yaml", "querylect.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            assert str(evaluated_run.parent.parent) not in path.read_text(), path
            assert "127.0.0.1" not in path.read_text(), path
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "others may read the weights, too"
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["do_sample"], generation["max_new_tokens"]) == (False, 6)
    exported = read_exported(folder)
    config = load_config(str(evaluated_run / "config.yaml"))
    assert (exported.lora, exported.base_model, exported.license) == (False, "base", "mit")
    assert (exported.run.name, exported.run.checkpoint, exported.run.step) == ("run", "final", 2)
    assert exported.environment == json.loads((evaluated_run / "environment.json").read_text())
    assert exported.config["train"] == config.train.model_dump(mode="json")
    assert exported.run.base_fingerprint == json.loads((evaluated_run / "base.json").read_text())["fingerprint"]
    assert exported.results[""]["scores"] == json.loads((evaluated_run / "results.json").read_text())["scores"]
    settings = settings_of(exported, folder)
    assert (settings.policy.model, settings.rollout) == (str(folder), config.rollout)
    assert Path(settings.rewriter.prompt).read_text() == Path(config.rewriter.prompt).read_text()
    assert settings.rewriter.model_copy(update={"prompt": config.rewriter.prompt}) == config.rewriter


def own_answer(run: Path, question: str) -> tuple[list[int], list[int], str]:
    """Prompt ids, sampled ids and text of the run's own greedy first turn, as evaluation samples it."""
    from querylect.envs.client.connect import open_environment

    config = load_config(str(run / "config.yaml"))
    with open_environment(config.env, config.client) as client:
        tree_sampler = tree_sampler_of(config, client, engine_of(config, find_checkpoint(run)))
    messages = tree_sampler.policy.rewriter.first(tree_sampler.policy.chat.plain_question(Question("q", question)))
    prompt = tree_sampler.policy.chat.first(messages, tree_sampler.policy.rewriter.opening)
    sampling = Sampling(temperature=0.0, max_new_tokens=config.rollout.max_new_tokens)
    ids = tree_sampler.policy.engine.generate([prompt], 1, sampling)[0][0].ids
    return prompt, ids, tree_sampler.policy.rewriter.opening + tree_sampler.policy.chat.text(ids)


def test_the_code_of_the_card_answers_as_the_run_does_without_this_package(folder, evaluated_run, monkeypatch, capsys):
    chat = read_exported(folder).chats[""]
    code = snippet((folder / "README.md").read_text())
    assert not re.search(r"(from|import)\s+querylect\b", code)
    monkeypatch.chdir(folder)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    prompt, ids, text = own_answer(evaluated_run, chat.question)
    assert names["ids"] == prompt
    assert names["output"][0, len(prompt) :].tolist() == ids
    assert capsys.readouterr().out == f"{text}\n"
    assert text == chat.opening + chat.answer
    assert chat.answer == Rewriter.from_pretrained(evaluated_run).rewrite(chat.question, turn=1).answer


def test_the_card_says_what_was_measured_where_the_hub_reads_it(folder, evaluated_run):
    from huggingface_hub import ModelCard

    card = ModelCard.load(folder / "README.md")
    results = json.loads((evaluated_run / "results.json").read_text())
    data = card.data
    assert (data.license, data.library_name, data.pipeline_tag) == ("mit", "transformers", "text-generation")
    assert {"querylect", "query-rewriting", "bm25"} <= set(data.tags)
    metrics = {entry.metric_name: entry.metric_value for entry in data.eval_results}
    for row in results["scores"]:
        value = row["metrics"]["ndcg@10"]
        if row["system"] == "trained":
            assert metrics[f"nDCG@10, turn {row['turn']}"] == round(value, 4)
        assert re.search(rf"^\| {re.escape(row['label'])} \| {value:.3f}\W* \(", card.text, re.MULTILINE)
    assert len(metrics) == 2 * 3
    assert all(entry.dataset_split == "test" for entry in data.eval_results)
    assert results["headline"] in card.text
    assert "none of them trained on" in card.text


def edit(path, change_it):
    path.write_text(json.dumps(change_it(json.loads(path.read_text()))), encoding="utf-8")


def results_with(**changes):
    """A spoiler: results.json with other values, each from those that it has."""

    def spoil(run):
        edit(run / "results.json", lambda values: values | {key: of(values) for key, of in changes.items()})

    return spoil


def of_the_split_that_chose(run):
    (run / "final").rename(run / "best")
    results_with(split=lambda _: "validation")(run)


def of_trained_questions(run):
    trained = json.loads((run / "rollouts.jsonl").read_text().splitlines()[0])["question"]
    line = json.loads((run / "eval.jsonl").read_text().splitlines()[0])
    (run / "eval.jsonl").write_text(json.dumps({**line, "question": f"{trained.upper()} ?"}), encoding="utf-8")


SPOILED = {
    "unevaluated": (lambda run: (run / "results.json").unlink(), ["`querylect eval ", "--checkpoint final`"]),
    "other weights": (
        lambda run: edit(run / "final" / "adapter_config.json", lambda values: {**values, "lora_alpha": 9}),
        ["measured other weights"],
    ),
    "training split": (results_with(split=lambda _: "train"), ["results.json", "'train'"]),
    "split that chose": (of_the_split_that_chose, ["results.json", "`best`", "eval.split=test"]),
    "other settings": (
        results_with(config=lambda values: values["config"].replace("documents: 2\n", "documents: 9\n")),
        ["rollout.documents"],
    ),
    "trained questions": (of_trained_questions, ["shares 1 ", "results.json"]),
    "first turn": (
        results_with(scores=lambda values: [row for row in values["scores"] if row["turn"] < 2]),
        ["turn 2", "eval.turns=2"],
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_results_of_other_weights_or_not_held_out_are_refused(copied, tmp_path, name):
    spoil, facts = SPOILED[name]
    spoil(copied)
    with refused(CheckpointError, *facts):
        export_to_folder(copied, tmp_path / "out", **MERGED)
    assert not (tmp_path / "out").exists()


def test_an_adapter_leaves_alone_only_where_others_have_its_base(evaluated_run, tmp_path):
    from huggingface_hub import ModelCard

    with refused(ConfigError, "--merge-lora"):
        export_to_folder(evaluated_run, tmp_path / "out")
    export_to_folder(evaluated_run, tmp_path / "out", base_model="acme/base", licence="apache-2.0")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    assert "model.safetensors" not in names
    adapter = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == "acme/base"
    exported, card = read_exported(tmp_path / "out"), ModelCard.load(tmp_path / "out" / "README.md")
    assert (exported.lora, exported.base_model) == (True, "acme/base")
    assert (card.data.base_model, card.data.license) == ("acme/base", "apache-2.0")
    rank = load_config(str(evaluated_run / "config.yaml")).policy.lora.r
    assert f"--max-lora-rank {max(rank, 8)} " in card.text, "vLLM takes ranks from 8"
    quantised = BaseModelSource("package:llm", "acme/base", dequantised=True, licence={})
    with refused(ConfigError, "package:llm", "--merge-lora"):
        refuse_lone_adapter(quantised, evaluated_run / "final")


def test_a_mix_leaves_with_the_rewriter_and_results_of_each_environment(copied, tmp_path):
    config = load_config(str(copied / "config.yaml"))
    members = {"one": {}, "other": {"client": {"urls": ["http://127.0.0.1:9"]}}}
    plain = {**config.model_dump(), "mix": {"environments": members}}
    (copied / "config.yaml").write_text(dump_config(type(config).model_validate(plain)), encoding="utf-8")
    description = json.loads((copied / "environment.json").read_text())
    with refused(CheckpointError, "environment.json"):
        export_to_folder(copied, tmp_path / "out", **MERGED)
    environments = {"one": description, "other": description}
    (copied / "environment.json").write_text(
        json.dumps({**description, "environments": environments}), encoding="utf-8"
    )
    values = json.loads((copied / "results.json").read_text().replace('"bm25"', '"one"'))
    values["config"] = (copied / "config.yaml").read_text()
    (copied / "results.json").write_text(json.dumps(values))
    with refused(CheckpointError, "final", "--env other"):
        export_to_folder(copied, tmp_path / "out", **MERGED)
    export_to_folder(copied, tmp_path / "out", **MERGED, without_evaluation=True)
    exported = read_exported(tmp_path / "out")
    assert exported.results["one"] is not None
    assert exported.results["other"] is None
    members = settings_of(exported, tmp_path / "out").mix.environments
    assert members["other"].rewriter.prompt == str(tmp_path / "out" / "prompt-other.yaml")
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'json.load(file)["chats"]["one"]' in card


def test_a_staged_rewriter_says_that_its_chat_needs_more_than_the_question(copied, tmp_path):
    config = change(load_config(str(copied / "config.yaml")), **{"rewriter.name": "hcqr", "rewriter.prompt": "hpo"})
    (copied / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    export_to_folder(copied, tmp_path / "out", **MERGED, without_evaluation=True)
    chat = read_exported(tmp_path / "out").chats[""]
    assert chat.template is None
    assert chat.answer is None
    assert "what another model said of it first" in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out" / "prompt.yaml").exists()


def test_the_licence_of_a_packaged_gguf_is_read_from_it(tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf")
    (tmp_path / "own_llm").mkdir()
    (tmp_path / "own_llm" / "__init__.py").touch()
    writer = gguf.GGUFWriter(tmp_path / "own_llm" / "model.gguf", "llama")
    writer.add_license("Apache-2.0")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    monkeypatch.syspath_prepend(tmp_path)
    base = base_of("package:own_llm")
    assert (base.hub_id, base.dequantised, base.licence) == (None, True, {"license": "apache-2.0"})


def test_an_existing_target_is_replaced_whole_and_only_when_told(copied, tmp_path):
    target = tmp_path / "out"
    for export in (export_to_folder, export_to_hub):
        with refused(ConfigError, tmp_path / "none", "config.yaml"):
            export(tmp_path / "none", target if export is export_to_folder else "owner/name")
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with refused(ConfigError, target, "--overwrite"):
        export_to_folder(copied, target, **MERGED)
    export_to_folder(copied, target, **MERGED, overwrite=True)
    assert not (target / "notes.txt").exists()
    for inside in ("run", ".", "run/final"):
        with refused(ConfigError, "--to", copied):
            export_to_folder(copied, tmp_path / inside, **MERGED, overwrite=True)
