"""The counts behind docs/structure.md (benchmarks/structure.py), on a checkout of four files."""

import pytest
from querylect.benchmarks.structure import Walk, counts, draw, parsed, whole_configs


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
    sizes = {"files": (1, 1), "data": (1, 2), "envs": (1, 3), "train": (1, 2), "all": (4, 8)}
    assert lines[:5] == [f"{name} {modules} modules {size} lines" for name, (modules, size) in sizes.items()]
    assert lines[5] == "circles of files 1, imports upwards 1"
    assert lines[7:] == ["class names with several definitions 0", "signatures that take the whole RunConfig 1"]
    assert whole_configs(parsed(checkout / "train" / "run.py")) == 1


def test_the_picture_has_a_curve_and_a_ring_for_the_old_checkout_alone(checkout, tmp_path):
    now = tmp_path / "now"
    (now / "data").mkdir(parents=True)
    (now / "data" / "load.py").write_text("x = 1\n")
    picture = draw(checkout, now)
    assert (picture.count("<path"), picture.count("<circle")) == (1, 1)
    assert picture.count("<rect") == 1 + 4 + 2


def test_a_walk_counts_first_calls_by_file():
    walk = Walk()
    run = "train/run.py"
    for call in ((run, 1), (run, 9), ("envs/plan.py", 1), (run, 1), (run, 20), ("cli.py", 3)):
        walk.call(*call)
    assert str(walk) == "5 functions, 4 stays in 3 files, 2 climbs, 1 returns"
