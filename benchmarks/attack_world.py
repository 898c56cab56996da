"""The run for the attacks on a trainer, and the undisturbed result that each attack must reach.

It is that of a config which the user names, or a tiny one. The tiny corpus is the five documents of tests/lessons.py
among some thousand of random words, with a training, a validation and a test split; the policy keeps the format and has
random weights. The run has a warm start, four steps, a checkpoint after every one and two validations.
"""

import hashlib
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from attack_child import Child
from attack_service import Service
from querylect.configs.load import dump_config, load_config
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RunConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.client.connect import known_services
from querylect.errors import ConfigError
from querylect.sources import resolve_model
from querylect.storage import logged_objects
from querylect.tests.lessons import ASKED, PROMPT, TEXTS, save_speaking

DOCUMENTS = 600
REWRITTEN = 5
"""Questions of `rewrite`."""
FIRST_PATIENCE, LEAST_PATIENCE = 3600.0, 240.0
"""Seconds after which an undisturbed command, and at least any other, is taken not to end."""
TIMES = (
    "seconds", "throughput", "memory", "cache", "time", "created", "finished", "started", "duration", "date", "load",
    "pid",
)  # fmt: skip
"""Keys of records, by their beginnings, that depend on the clock or the process."""
RUN_FILES = ("final", "best", "metrics.jsonl", "rollouts.jsonl", "validation.jsonl", "warm_start.jsonl", "warm_start")
EVAL_FILES = ("eval.jsonl", "results.json")
UNEQUAL = ("training_args.bin", "README.md")
"""Files of saved policies that hold settings of the process, or what a library writes about it."""


def _named(folder: Path, config: str, overrides: Sequence[str]) -> RunConfig:
    path = Path(config) / "config.yaml"
    isolation = [f"output={folder / 'runs'}", f"env.index={folder / 'index'}", "tracking.wandb=disabled"]
    settings = load_config(str(path) if path.is_file() else config, [*overrides, *isolation])
    if settings.mix is not None:
        raise ConfigError(f"{config} mixes environments, and one is attacked. Give a config without `mix`.")
    return settings


def _tiny(folder: Path, url: str) -> RunConfig:
    save_beir(_dataset(), folder / "data")
    (folder / "prompt.yaml").write_text(PROMPT)
    policy = {"model": str(save_speaking(folder / "policy")), "dtype": "float32", "lora": {"r": 4, "alpha": 8}}
    env = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=str(folder / "data")), index=str(folder / "index"), block_mib=0.02
    )
    return RunConfig.model_validate(
        {
            "name": "tiny",
            "output": str(folder / "runs"),
            "env": env.model_dump(),
            "client": {"urls": [url], "timeout": 5.0, "deadline": 60.0},
            "policy": policy,
            "rewriter": {"name": "small", "prompt": str(folder / "prompt.yaml")},
            "rollout": {"branching": [2, 2], "max_new_tokens": 6, "documents": 2, "document_tokens": 8},
            "train": {
                "steps": 4, "questions_per_step": 2, "learning_rate": 0.01, "save_steps": 1,
                "keep_checkpoints": 2, "validate_steps": 2, "validation_questions": 3,
                "warm_start": {"questions": 5, "questions_per_step": 5},
            },
            "eval": {"permutations": 50, "bootstrap": 50, "training_free": [], "hyde": False},
            "tracking": {"wandb": "disabled"},
        }
    )  # fmt: skip


class World:
    """One folder with data, policy, settings and, once `prepare` has run, what an undisturbed run leaves behind."""

    def __init__(self, folder: Path, config: str | None = None, overrides: Sequence[str] = ()) -> None:
        """`config` is a packaged name, a YAML file or a run folder, whose config.yaml is meant; None: the tiny one.

        Index and run are made anew in `folder`: nothing that the config names is written to. Raises ConfigError.
        """
        self.folder, self.has_user_config = folder, config is not None
        self.index, self.exported = folder / "index", folder / "exported"
        self.yaml, self.undisturbed = folder / "run.yaml", folder / "undisturbed"
        self.service = Service(self.yaml, folder / "service.log")
        folder.mkdir(parents=True, exist_ok=True)
        self.config = _tiny(folder, self.service.url) if config is None else _named(folder, config, overrides)
        self.builds_index = config is None or known_services(self.config.env, self.config.client) is None
        self.run = folder / "runs" / self.config.name
        self.yaml.write_text(dump_config(self.config))
        self._marks: dict[str, list[tuple[float, str]]] = {}

    def command(self, name: str, *more: str) -> list[str]:
        """The arguments of index, verify, train, rewrite, eval or export."""
        return {
            "index": ["index", "build", str(self.yaml), "--overwrite"],
            "verify": ["index", "verify", str(self.yaml)],
            "train": ["train", str(self.yaml)],
            "rewrite": ["rewrite", str(self.run), "--checkpoint", "final",
                        *(f"-q{text}" for text in self._questions())],
            "eval": ["eval", str(self.run)],
            "export": ["export", str(self.run), "--to", str(self.exported), "--merge-lora", "--overwrite",
                       "--license", "apache-2.0", *self._base()],
        }[name] + [*more]  # fmt: skip

    def _questions(self) -> list[str]:
        """Some questions of the undisturbed run."""
        trees = logged_objects(self.undisturbed / "train" / self.run.name / "rollouts.jsonl")
        return [*dict.fromkeys(tree["question"] for tree in trees)][:REWRITTEN]

    def _base(self) -> list[str]:
        """What `export` asks for where the policy was trained on a folder."""
        return ["--base-model", "example/base"] if Path(resolve_model(self.config.policy.model)).is_dir() else []

    def child(self, name: str, *more: str, limit: int | None = None, beside: bool = False) -> Child:
        """Start a command; `beside` another that still runs."""
        marks = self._marks.get(name)
        patience = max(LEAST_PATIENCE, 5 * (marks[-1][0] - marks[0][0])) if marks else FIRST_PATIENCE
        return Child(self.command(name, *more), self._child_folder(beside), limit, patience)

    def _child_folder(self, beside: bool = False) -> Path:
        return self.folder / ("second" if beside else "child")

    def again(self, name: str) -> Child:
        """Start a command again as a user would: training that has begun with --resume."""
        resume = name == "train" and (self.run / "config.yaml").exists()
        return self.child(name, *(["--resume"] if resume else []))

    def prepare(self, commands: Sequence[str] = ("index", "train", "eval", "export")) -> dict[str, list]:
        """Run each command once undisturbed and keep its results; the marks of each, by its name.

        RuntimeError where one fails, and where the training of a named config does not repeat.
        """
        for name in commands:
            if name in self._marks or (name == "index" and not self.builds_index):
                continue
            if name == "train" and not self.has_user_config:
                self.service.start()
            if name == "rewrite":  # of one part alone, before which others may have left another state
                self.restore("train")
            child = self._undisturbed(name)
            self._marks[name] = [(child.started, "begin"), *child.marks(), (time.time(), "end")]
            for part in (self.index, self.run, self.exported):
                if part.exists():
                    shutil.copytree(part, self.undisturbed / name / part.name)
            (self.undisturbed / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(child.stdout, self.undisturbed / name)
            if name == "train" and self.has_user_config:
                self._refuse_other_result()
        return self._marks

    def _undisturbed(self, name: str) -> Child:
        child = self.child(name)
        if child.wait() != 0:
            raise RuntimeError(f"the undisturbed {name} failed:\n{child.error()[-2000:]}")
        return child

    def _refuse_other_result(self) -> None:
        """Raise RuntimeError where training again does not give the same bytes: every attack would seem to be lost."""
        self.restore(None)
        self._undisturbed("train")
        if different := self.differences("train"):
            raise RuntimeError(
                f"two undisturbed runs differ in {', '.join(different)}, so nothing can be concluded from an attacked "
                "one. Choose settings that repeat to the byte: on a CPU, without a time limit."
            )

    def build(self, config: Path) -> None:
        """Build the index of another config file."""
        child = Child(["index", "build", str(config)], self.folder / "child")
        if child.wait() != 0:
            raise RuntimeError(f"the index of {config} was not built:\n{child.error()[-2000:]}")

    def restore(self, after: str | None) -> None:
        """The state after an undisturbed command; None: nothing is there but the index."""
        for part in (self.index, self.run, self.exported):
            shutil.rmtree(part, ignore_errors=True)
            saved = self.undisturbed / (after or "index") / part.name
            if saved.exists():
                shutil.copytree(saved, part)

    def remove_index(self, parts_only: bool = False) -> None:
        """As before the first build, or before one that replaces the index."""
        if not parts_only:
            shutil.rmtree(self.index, ignore_errors=True)
        for path in self.folder.glob(f".{self.index.name}.*"):
            shutil.rmtree(path, ignore_errors=True)

    def differences(self, name: str) -> list[str]:
        """Files whose content differs from that of the undisturbed command, times aside; of `rewrite`, its stdout."""
        part, files = {
            "index": (self.index, ("",)),
            "train": (self.run, RUN_FILES),
            "eval": (self.run, EVAL_FILES),
            "export": (self.exported, ("",)),
            "rewrite": (self._child_folder(), ("stdout",)),
        }[name]
        undisturbed = self.undisturbed / name / (part.name if name != "rewrite" else "")
        now, expected = contents(part, files), contents(undisturbed, files)
        return sorted(path for path in now.keys() | expected.keys() if now.get(path) != expected.get(path))

    def leftovers(self) -> list[str]:
        """Half-written files that are still there."""
        marks = (".writing", ".partial", ".tmp", ".part", ".parts", ".replaced", ".discarded")
        return [str(path) for path in (*self.folder.glob(".*"), *self.run.rglob("*")) if path.name.endswith(marks)]


def contents(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """A digest of every file below some names of a folder, without what depends on the clock."""
    paths = [folder / name for name in names]
    paths += [path for parent in paths if parent.is_dir() for path in parent.rglob("*")]
    files = [path for path in paths if path.is_file() and path.name not in UNEQUAL]
    return {str(path.relative_to(folder)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    if path.suffix not in (".json", ".jsonl"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        text = path.read_text(encoding="utf-8")
        values = [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
    except ValueError as error:
        return f"unreadable: {error}"
    plain = [json.dumps(_without_times(value), sort_keys=True) for value in values]
    return hashlib.sha256("\n".join(plain).encode()).hexdigest()


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if not key.startswith(TIMES)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _dataset() -> Dataset:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=5)) for _ in range(400)]
    corpus = [Document(name, f"About {name}", text) for name, text in TEXTS.items()]
    corpus += [Document(f"d{n}", f"Title {n}", " ".join(draw.choices(words, k=12))) for n in range(DOCUMENTS)]
    grades = {name: grades for name, (_, grades) in ASKED.items()}
    splits = {}
    for split, lead_in, prefix in (("train", "", ""), ("validation", "tell me: ", "v-"), ("test", "please: ", "t-")):
        questions = [Question(f"{prefix}{name}", f"{lead_in}{text}") for name, (text, _) in ASKED.items()]
        splits[split] = Split(questions, {f"{prefix}{name}": grade for name, grade in grades.items()})
    return Dataset("tiny", corpus, splits)
