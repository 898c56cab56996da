"""The commands of a report: names of folders and of their content are quoted safely."""

import shlex
from pathlib import Path

from querylect.eval.drift.results import DriftFile, DriftSettings, SourceEntry
from querylect.eval.report import reproduce

ODD = "-a'b $(id)\n`id` #"


def test_a_folder_of_any_name_is_one_word_and_no_option():
    words = shlex.split(reproduce.of_run(Path(ODD)))
    assert words == ["querylect", "train", f"./{ODD}/config.yaml", "name=a-b---id---id----again"]
    assert shlex.split(reproduce.of_evaluation(Path(ODD)))[-1] == f"./{ODD}"
    assert shlex.split(reproduce.of_report([Path(ODD)], Path("page.html"), 3))[2] == f"./{ODD}"


def test_what_a_results_file_says_of_its_systems_and_settings_adds_no_option():
    settings, systems = DriftSettings(system="--output=/elsewhere", estimator="eq6"), [SourceEntry("--output", ODD)]
    fields = {"created": "", "success": "", "notes": [], "pairs": [], "versions": {}}
    content = DriftFile(settings=settings, systems=systems, **fields)
    words = shlex.split(reproduce.of_drift(Path("drift"), content))
    options = ["--system=--output=/elsewhere", "--estimator=eq6"]
    assert words == ["querylect", "drift", *options, "--output", "drift", "--", f"--output={ODD}"]
