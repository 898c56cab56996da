"""Documents of few words, many of them equal, and probes with signed weights over them."""

from collections.abc import Sequence
from pathlib import Path

from querylect.configs.schema import DatasetConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.plan import Probe, SearchPlan, Term

WORDS = ("wing", "heat", "slab", "flow", "drag", "lift", "layer")
PROBES = [
    [("heat of a wing", 1.0)],
    [("heat", 1.0), ("wing", -0.5)],
    [("heat air", 2.0), ("flow", 0.3), ("heat slab", -1.9)],
    [("heat", 1.0), ("heat", -1.0)],
    [("heat", -1.0)],
    [(" ", 1.0), ("drag", 1.0), ("lift", 0.0)],
]


def documents(count: int) -> list[Document]:
    return [
        Document(f"d{i}", WORDS[i % 7], f"{WORDS[i % 3]} {WORDS[(i * i) % 7]} {'heat ' * (i % 4)}air {WORDS[i % 5]}")
        for i in range(count)
    ]


def save(folder: Path, corpus: Sequence[Document]) -> DatasetConfig:
    """The corpus as a BEIR folder with one question."""
    save_beir(Dataset(folder.name, corpus, {"test": Split([Question("q", "heat")], {"q": {"d0": 1}})}), folder)
    return DatasetConfig(path=str(folder))


def plan(terms: Sequence[tuple[str, float]], k: int = 5) -> SearchPlan:
    """A plan of one probe."""
    return SearchPlan(probes=(Probe(terms=tuple(Term(text=text, weight=weight) for text, weight in terms)),), k=k)
