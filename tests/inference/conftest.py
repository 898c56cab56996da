"""Fixtures of the files in this folder."""

import pytest
from querylect.envs.build import build_index

from ..chat_server import impatient  # noqa: F401
from ..used import export, failing, failing_run, rewriter, trained, trained_run  # noqa: F401


@pytest.fixture(scope="session")
def fts5_lessons(lessons, tmp_path_factory):
    """The environment of the lessons with a retriever that has a query language."""
    index = str(tmp_path_factory.mktemp("fts5") / "index")
    config = lessons.model_copy(update={"retriever": "fts5", "index": index})
    build_index(config)
    return config
