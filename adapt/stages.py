"""The stages from a folder of documents to an exported rewriter, each of which is a command of its own too.

FOLDER/config.yaml   the settings of all stages
FOLDER/corpus        passages of the documents
FOLDER/index         the retriever's index of them
FOLDER/dataset       passages with written questions, in splits
FOLDER/runs/NAME     the training run, and in it the evaluation and its report
FOLDER/exported      the trained policy as a plain model folder
FOLDER/stages.jsonl  the settings that each stage was started with

A stage is finished when its output exists, for each output appears whole. A second call goes on with the first stage
that is not finished.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..configs.differences import FREE_TO_CHANGE, among, flat
from ..configs.llm import SyntheticConfig
from ..configs.load import validated
from ..configs.schema import DatasetConfig, EnvironmentConfig, QuestionsConfig, RunConfig
from ..configs.section import as_name
from ..data.beir import judging, load_beir, question_line
from ..data.documents.corpus import source_digest, write_corpus
from ..data.types import AllDocuments
from ..errors import ConfigError, StoppedError
from ..logs import Progress
from ..storage import data_sha256

_NOT_LEARNED = (*FREE_TO_CHANGE, "questions", "optimize")
"""Settings that may differ from those that the finished training was started with."""

StageProgress = Callable[[str], AbstractContextManager[Progress]]
"""Returns the progress of a stage of that title."""


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """What is adapted to, and where everything goes."""

    source: Path
    """The documents: a file or a folder."""
    folder: Path
    test: Path | None = None
    """A BEIR folder of users' questions, which replace the written ones in the final test."""
    words: int = 200
    """Words of a passage at most."""
    overlap: int = 30
    """Words that repeat the end of the passage before."""

    @property
    def config_file(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"

    @property
    def dataset(self) -> Path:
        return self.folder / "dataset"

    @property
    def exported(self) -> Path:
        return self.folder / "exported"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage."""

    name: str
    command: str
    """The command that does the same."""
    output: Path
    """Exists once the stage is finished."""
    settings: Mapping[str, object]
    """What the output depends on, as JSON data."""
    run: Callable[[StageProgress], Sequence[str]]
    """Does the work and returns lines for the reader."""


def config_in(config: RunConfig, options: AdaptOptions) -> RunConfig:
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
    values |= {"name": as_name(options.folder.resolve().name), "output": str(options.folder / "runs")}
    dataset = DatasetConfig(kind="beir", path=str(options.dataset))
    values["env"] |= {"dataset": dataset.model_dump(), "index": str(options.folder / "index")}
    return validated(RunConfig, values, str(options.config_file))


def stages_of(config: RunConfig, options: AdaptOptions) -> list[Stage]:
    """The stages in order, for a config from `config_in`.

    Raises DataError if there are no documents, or for an unusable folder of test questions.
    """
    dataset = config.env.dataset.model_copy(update={"path": str(options.corpus)})
    env, run, config_file = config.env.model_copy(update={"dataset": dataset}), config.run_folder, options.config_file
    retriever = env.model_dump(mode="json", include={"retriever", "model", "recipe", "engine", "hybrid"})
    cut = {"words": options.words, "overlap": options.overlap}
    asking = {
        "questions": config.questions.model_dump(mode="json"),
        "synthetic": config.synthetic.model_dump(mode="json"),
        "test": None if options.test is None else str(options.test),
        "test_questions": None if options.test is None else _digest_of_test(options.test),
    }
    settings = config.model_dump(mode="json")
    learning = {name: value for name, value in flat(settings) if not among(name, _NOT_LEARNED)}
    users = [] if options.test is None else ["--test", str(options.test)]
    flags = [part for name, value in cut.items() for part in (f"--{name}", str(value))]
    return [
        Stage(
            "documents",
            _command("data documents", options.source, "--to", options.corpus, *flags),
            options.corpus,
            {**cut, "source": source_digest(options.source)},
            partial(_read_documents, options),
        ),
        Stage(
            "index",
            _command("index build", config_file, f"env.dataset.path={options.corpus}"),
            env.index_folder,
            {"env": retriever},
            partial(_build_index, env),
        ),
        Stage(
            "questions",
            _command("data questions", config_file, "--corpus", options.corpus, "--to", options.dataset, *users),
            options.dataset,
            asking,
            partial(_write_questions, config.questions, config.synthetic, env, options),
        ),
        Stage("training", _command("train", config_file), run / "final", learning, partial(_train, config)),
        Stage(
            "evaluation",
            _command("eval", run),
            run / "report.html",
            {"eval": config.eval.model_dump(mode="json")},
            partial(_evaluate, config),
        ),
        Stage(
            "export",
            _command("export", run, "--merge-lora", "--to", options.exported),
            options.exported,
            {},
            partial(_export, run, options.exported),
        ),
    ]


def _read_documents(options: AdaptOptions, progress: StageProgress) -> Sequence[str]:
    with progress("reading documents") as advance:
        summary = write_corpus(options.source, options.corpus, options.words, options.overlap, advance)
    return summary.lines(str(options.corpus))


def _build_index(env: EnvironmentConfig, progress: StageProgress) -> Sequence[str]:
    from ..envs.build import build_index

    with progress("indexing") as advance:
        meta = build_index(env, progress=advance)
    return [f"{env.index}: {meta.documents:,} passages"]


def _write_questions(
    questions: QuestionsConfig,
    synthetic: SyntheticConfig,
    env: EnvironmentConfig,
    options: AdaptOptions,
    progress: StageProgress,
) -> Sequence[str]:
    from ..questions.training_set import write_training_set

    with progress("asking") as advance:
        return write_training_set(questions, synthetic, env, options.corpus, options.dataset, options.test, advance)


def _train(config: RunConfig, progress: StageProgress) -> Sequence[str]:
    from ..train.run import train

    try:
        return [str(train(config, resume=(config.run_folder / "config.yaml").exists()))]
    except StoppedError as error:
        message = "a signal ended the training; its last finished step is saved. Give the same command again."
        raise StoppedError(message) from error


def _evaluate(config: RunConfig, progress: StageProgress) -> Sequence[str]:
    from ..eval.run import evaluate_each

    # named, so that it is not put aside where the evaluation's settings were changed after the training
    (report,) = evaluate_each(config, config.run_folder, config.run_folder)
    return [report.with_name("tables.md").read_text(encoding="utf-8"), str(report)]


def _export(run: Path, target: Path, progress: StageProgress) -> Sequence[str]:
    from ..export.export import export_to_folder

    return [export_to_folder(run, target, merge_lora=True)]


def _digest_of_test(folder: Path) -> str:
    """Hash of users' test questions, their judgements and how these count."""
    dataset = load_beir(folder, ["test"], AllDocuments())
    split = dataset.splits["test"]
    rows = [[question_line(question), sorted(split.qrels[question.id].items())] for question in split.questions]
    return data_sha256([judging(dataset), rows])


def _command(name: str, *arguments: str | Path) -> str:
    return f"querylect {name} {shlex.join(map(str, arguments))}"
