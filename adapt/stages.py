"""The stages from a folder of documents to an exported rewriter, each of which is a command.

FOLDER/config.yaml   the settings of all stages
FOLDER/corpus        passages of the documents
FOLDER/index         the retriever's index of them
FOLDER/dataset       passages with written questions, in splits
FOLDER/runs/NAME     the training run, and in it the evaluation and its report
FOLDER/exported      the trained policy as a plain model folder
FOLDER/stages.json   the settings that each stage was started with

A stage is finished when its output exists, for each output appears whole, and no part of an evaluation failed. A second
call goes on with the first stage that is not finished.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.load import FREE_TO_CHANGE, among, dump_config, flat, validated
from ..configs.schema import DatasetConfig, RunConfig
from ..configs.section import as_name
from ..data.documents import source_digest
from ..errors import ConfigError
from ..eval.results import RESULTS
from ..storage import folder_sha256, json_object, only_command, write_text

_NOT_LEARNED = (*(name for name in FREE_TO_CHANGE if name != "eval"), "questions", "optimize")
"""Settings that may differ from those that the finished training was started with."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage."""

    name: str
    arguments: Sequence[str]
    """Of `querylect`."""
    output: Path
    """Exists once the stage is finished; an evaluation in which something failed is not."""
    settings: Mapping[str, object]
    """What the output depends on, as JSON data under dotted names."""

    @property
    def command(self) -> str:
        """As it is typed."""
        return f"querylect {shlex.join(self.arguments)}"

    @property
    def is_finished(self) -> bool:
        return self.output.exists() and not (json_object(self.output.with_name(RESULTS)) or {}).get("failed")


def config_in(config: RunConfig, folder: Path) -> RunConfig:
    """The config with its name, output, dataset and index in the folder.

    Raises ConfigError for a mix, and for rewards by answers.
    """
    if config.mix is not None:
        raise ConfigError("the config mixes environments, and documents are one. Leave mix out.")
    if config.reward.kind == "answer":
        raise ConfigError(
            "reward.kind is answer, and the questions that are written have relevant passages and no right answers. "
            "Set reward.kind=metric."
        )
    values = config.model_dump()
    values |= {"name": as_name(folder.resolve().name), "output": str(folder / "runs")}
    dataset = DatasetConfig(path=str(folder / "dataset"))
    values["env"] |= {"dataset": dataset.model_dump(), "index": str(folder / "index")}
    return validated(RunConfig, values, str(folder / "config.yaml"))


def stages_of(
    config: RunConfig, source: Path, folder: Path, test: Path | None = None, words: int = 200, overlap: int = 30
) -> list[Stage]:
    """The stages in order, for a config from `config_in`. Raises DataError if there are no documents.

    `test` is a BEIR folder of users' questions, which replace the written ones in the final test; `words` are those of
    a passage at most, of which `overlap` repeat the end of the passage before.
    """
    file, corpus, dataset, exported = (str(folder / name) for name in ("config.yaml", "corpus", "dataset", "exported"))
    run, settings = config.run_folder, dict(flat(config.model_dump(mode="json")))
    retriever = {f"env.{name}" for name in ("retriever", "model", "recipe", "engine", "hybrid")}
    users = ["--test", str(test)] if test is not None else []
    cut = {"words": words, "overlap": overlap}

    def sections(*names: str) -> dict[str, object]:
        return {name: value for name, value in settings.items() if among(name, names)}

    return [
        Stage(
            "documents",
            ["data", "documents", str(source), "--to", corpus, "--words", str(words), "--overlap", str(overlap)],
            folder / "corpus",
            {**cut, "source": source_digest(source)},
        ),
        Stage("index", ["index", "build", file, f"env.dataset.path={corpus}"], folder / "index", sections(*retriever)),
        Stage(
            "questions",
            ["data", "questions", file, "--corpus", corpus, "--to", dataset, *users],
            folder / "dataset",
            {**sections("questions", "synthetic"), "test": folder_sha256(test) if test is not None else None},
        ),
        Stage(
            "training",
            ["train", file, *(["--resume"] if (run / "config.yaml").exists() else [])],
            run / "final",
            {name: value for name, value in settings.items() if not among(name, _NOT_LEARNED)},
        ),
        Stage("evaluation", ["eval", str(run)], run / "report.html", {}),
        Stage("export", ["export", str(run), "--merge-lora", "--to", exported], folder / "exported", {}),
    ]


def run_stages(
    config: RunConfig,
    folder: Path,
    stages: Sequence[Stage],
    run: Callable[[Sequence[str]], object],
    report: Callable[[str], None],
) -> None:
    """Run the commands of the stages that are left; `report` gets a line for each stage.

    Raises ConfigError if a finished stage was started with other settings, StorageError if another command is at work
    in the folder, and as the commands.
    """
    journal = folder / "stages.json"
    with only_command(folder):
        recorded = json_object(journal) or {}
        for stage in stages:
            if stage.is_finished:
                _refuse_other_settings(stage, recorded.get(stage.name))
        write_text(folder / "config.yaml", dump_config(config))
        for number, stage in enumerate(stages, start=1):
            label = f"[{number}/{len(stages)}] {stage.name}"
            if stage.is_finished:
                report(f"{label}: {stage.output} is there")
                continue
            report(f"{label}: {stage.command}")
            recorded[stage.name] = stage.settings
            write_text(journal, json.dumps(recorded, indent=1))
            run(stage.arguments)


def _refuse_other_settings(stage: Stage, recorded: Mapping[str, object] | None) -> None:
    """Raise ConfigError if the output of a finished stage is not what it would be now."""
    if recorded is None:
        raise ConfigError(
            f"{stage.output} exists, and the stage {stage.name!r} of this command did not write it. Remove it, or name "
            "another folder with --to."
        )
    changed = [name for name in sorted({*recorded, *stage.settings}) if recorded.get(name) != stage.settings.get(name)]
    if changed:
        raise ConfigError(
            f"the stage {stage.name!r} is finished, with other settings or documents: {', '.join(changed[:5])}. Give "
            f"those again, name another folder with --to, or do a stage alone, such as `{stage.command}`."
        )
