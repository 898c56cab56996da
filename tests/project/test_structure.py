"""The counts of benchmarks/structure.py on a checkout of four files."""

import pytest
from querylect.benchmarks.structure import counts, parsed, whole_configs


@pytest.fixture
def checkout(tmp_path):
    for file, text in {
        "data/load.py": "from ..envs.plan import Plan\nclass Split: ...\n",
        "envs/plan.py": "from ..data.load import Split\nclass Plan: ...\nfound = 1\n",
        "train/run.py": "def train(config: 'RunConfig', *, resume): ...\ndef stop(run): ...\n",
        "cli.py": "from .train.run import train\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def test_counts_of_a_checkout(checkout, capsys):
    counts(checkout)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    sizes = {"data": (1, 2), "envs": (1, 3), "train": (1, 2), "files": (1, 1), "all": (4, 8)}
    assert lines[:5] == [f"{name} {modules} modules {size} lines" for name, (modules, size) in sizes.items()]
    assert lines[5] == "circles of files 1, imports upwards 1"
    assert lines[7:] == ["class names with several definitions 0", "signatures that take the whole RunConfig 1"]
    assert whole_configs(parsed(checkout / "train" / "run.py")) == 1
