"""A run that was really trained and really evaluated, to be exported; and what runs the code of its card."""

import re
import shutil
from pathlib import Path

import pytest
from querylect.train.run import train

from .evaluated import evaluate
from .lessons import change, lesson_settings

CARD = "---\nlicense: mit\n---\n# A base model\n"


@pytest.fixture(scope="session")
def evaluated_run(lessons, lesson_url, speaking, tmp_path_factory) -> Path:
    """The folder of a LoRA run of two steps, each saved, with its evaluation; not to be changed (see `copied`)."""
    folder = tmp_path_factory.mktemp("exported")
    base = Path(shutil.copytree(speaking, folder / "base"))
    (base / "README.md").write_text(CARD)
    config = lesson_settings(lessons, lesson_url, base, folder)
    quick = {"train.steps": 2, "train.save_steps": 1, "train.keep_checkpoints": 9}
    config = change(config, **quick, **{"eval.permutations": 50, "eval.bootstrap": 50})
    run = train(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("querylect.eval.curves.draw_run", lambda *_: [])  # no test looks at the curves of its page
        evaluate(config, run, None)
    return run


@pytest.fixture
def copied(evaluated_run, tmp_path) -> Path:
    """A copy of the run, to be changed."""
    copy = Path(shutil.copytree(evaluated_run, tmp_path / "run"))
    return copy


def snippet(card: str) -> str:
    """The code that answers the example question with transformers: the prompt, then the library's part."""
    _, *blocks = re.findall(r"^```python\n(.*?)\n```$", card, re.DOTALL | re.MULTILINE)
    return "\n".join(blocks)
