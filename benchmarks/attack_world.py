"""A tiny corpus, policy and run for the attacks on a trainer, and the undisturbed result that each attack must reach.

The corpus is the five documents of tests/lessons.py among some thousand of random words, with a training, a validation
and a test split; the policy keeps the format and has random weights. A run has a warm start, four steps, a checkpoint
after every one and two validations.
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
from querylect.configs.load import dump_config
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RunConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.tests.lessons import ASKED, PROMPT, TEXTS, save_speaking

DOCUMENTS = 600
STEPS = 4
TIMES = ("seconds", "memory", "cache", "time", "created", "finished", "started", "duration", "date", "load", "pid")
"""Keys of records, by their beginnings, that depend on the clock or the process."""
RUN_FILES = ("final", "best", "metrics.jsonl", "rollouts.jsonl", "validation.jsonl", "warm_start.jsonl", "warm_start")
EVAL_FILES = ("eval.jsonl", "results.json")
UNEQUAL = ("training_args.bin", "README.md")
"""Files of saved policies that hold settings of the process, or what a library writes about it."""


class World:
    """One folder with data, policy, settings and, once `prepare` has run, what an undisturbed run leaves behind."""

    def __init__(self, folder: Path, steps: int = STEPS) -> None:
        self.folder = folder
        self.run, self.index, self.exported = folder / "runs/tiny", folder / "index", folder / "exported"
        self.yaml, self.undisturbed = folder / "run.yaml", folder / "undisturbed"
        save_beir(_dataset(), folder / "data")
        (folder / "prompt.yaml").write_text(PROMPT)
        policy = {"model": str(save_speaking(folder / "policy")), "dtype": "float32", "lora": {"r": 4, "alpha": 8}}
        env = EnvironmentConfig(
            dataset=DatasetConfig(kind="beir", path=str(folder / "data")), index=str(self.index), block_mib=0.02
        )
        self.service = Service(self.yaml, folder / "service.log")
        self.config = RunConfig.model_validate(
            {
                "name": "tiny",
                "output": str(folder / "runs"),
                "env": env.model_dump(),
                "client": {"urls": [self.service.url], "timeout": 5.0, "deadline": 60.0},
                "policy": policy,
                "rewriter": {"name": "small", "prompt": str(folder / "prompt.yaml")},
                "rollout": {"branching": [2, 2], "max_new_tokens": 6, "documents": 2, "document_tokens": 8},
                "train": {
                    "steps": steps, "questions_per_step": 2, "learning_rate": 0.01, "save_steps": 1,
                    "keep_checkpoints": 2, "validate_steps": 2, "validation_questions": 3,
                    "warm_start": {"questions": 5, "questions_per_step": 5},
                },
                "eval": {"permutations": 50, "bootstrap": 50, "training_free": [], "hyde": False},
                "tracking": {"wandb": "disabled"},
            }
        )  # fmt: skip
        self.yaml.write_text(dump_config(self.config))
        self._marks: dict[str, list[tuple[float, str]]] = {}

    def command(self, name: str, *more: str) -> list[str]:
        """The arguments of index, verify, train, rewrite, eval or export."""
        return {
            "index": ["index", "build", str(self.yaml), "--overwrite"],
            "verify": ["index", "verify", str(self.yaml)],
            "train": ["train", str(self.yaml)],
            "rewrite": ["rewrite", str(self.run), "--checkpoint", "final",
                        *(f"-q{text}" for text, _ in ASKED.values())],
            "eval": ["eval", str(self.run)],
            "export": ["export", str(self.run), "--to", str(self.exported), "--merge-lora", "--overwrite",
                       "--base-model", "example/tiny", "--license", "apache-2.0"],
        }[name] + [*more]  # fmt: skip

    def child(self, name: str, *more: str, limit: int | None = None, beside: bool = False) -> Child:
        """Start a command; `beside` another that still runs."""
        return Child(self.command(name, *more), self._place(beside), limit)

    def _place(self, beside: bool = False) -> Path:
        return self.folder / ("second" if beside else "child")

    def again(self, name: str) -> Child:
        """Start a command again as a user would: training that has begun with --resume."""
        begun = name == "train" and (self.run / "config.yaml").exists()
        return self.child(name, *(["--resume"] if begun else []))

    def prepare(self, commands: Sequence[str] = ("index", "train", "eval", "export")) -> dict[str, list]:
        """Run each command once undisturbed and keep its results; the marks of each, by its name."""
        for name in commands:
            if name in self._marks:
                continue
            if name == "train":
                self.service.start()
            child = self.child(name)
            if child.wait() != 0:
                raise RuntimeError(f"the undisturbed {name} failed:\n{child.error()[-2000:]}")
            self._marks[name] = [*child.marks(), (time.time(), "end")]
            for part in (self.index, self.run, self.exported):
                if part.exists():
                    shutil.copytree(part, self.undisturbed / name / part.name)
            shutil.copy(child.stdout, self.undisturbed / name)
        return self._marks

    def build(self, config: Path) -> None:
        """Build the index of another config file."""
        child = Child(["index", "build", str(config)], self.folder / "child")
        if child.wait() != 0:
            raise RuntimeError(f"the index of {config} was not built:\n{child.error()[-2000:]}")

    def restore(self, after: str | None) -> None:
        """The state after an undisturbed command; None: nothing is there but the index."""
        for part in (self.index, self.run, self.exported):
            shutil.rmtree(part, ignore_errors=True)
            kept = self.undisturbed / (after or "index") / part.name
            if kept.exists():
                shutil.copytree(kept, part)

    def remove_index(self, parts_only: bool = False) -> None:
        """As before the first build, or before one that replaces the index."""
        if not parts_only:
            shutil.rmtree(self.index, ignore_errors=True)
        for path in self.folder.glob(f".{self.index.name}.*"):
            shutil.rmtree(path, ignore_errors=True)

    def differences(self, name: str) -> list[str]:
        """Files whose content differs from that of the undisturbed command, times aside; of `rewrite`, what it said."""
        part, files = {
            "index": (self.index, ("",)),
            "train": (self.run, RUN_FILES),
            "eval": (self.run, EVAL_FILES),
            "export": (self.exported, ("",)),
            "rewrite": (self._place(), ("stdout",)),
        }[name]
        before = self.undisturbed / name / (part.name if name != "rewrite" else "")
        now, expected = contents(part, files), contents(before, files)
        return sorted(path for path in now.keys() | expected.keys() if now.get(path) != expected.get(path))

    def leftovers(self) -> list[str]:
        """Half-written files that are still there."""
        marks = (".writing", ".partial", ".tmp", ".part", ".parts", ".replaced", ".discarded")
        return [str(path) for path in (*self.folder.glob(".*"), *self.run.rglob("*")) if path.name.endswith(marks)]


def contents(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """A digest of every file below some names of a folder, without what depends on the clock."""
    paths = [folder / name for name in names]
    paths += [path for place in paths if place.is_dir() for path in place.rglob("*")]
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
    for split, before, prefix in (("train", "", ""), ("validation", "tell me: ", "v-"), ("test", "please: ", "t-")):
        questions = [Question(f"{prefix}{name}", f"{before}{text}") for name, (text, _) in ASKED.items()]
        splits[split] = Split(questions, {f"{prefix}{name}": grade for name, grade in grades.items()})
    return Dataset("tiny", corpus, splits)
