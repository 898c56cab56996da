"""The processes of a training run share one service and its secret token."""

import pytest
from querylect.configs.schema import RunConfig
from querylect.train.processes import shared_environment

from ..several import side_by_side

pytestmark = pytest.mark.server


def test_every_process_asks_the_service_that_one_of_them_started(small_environment, monkeypatch):
    monkeypatch.setenv("QUERYLECT_TOKEN", "of-another-service")
    config = RunConfig.model_validate({"env": small_environment.model_dump()})

    def corpus_size(processes):
        with shared_environment(config, processes) as client:
            size = client.info().corpus_size
            processes.all_gather(None)  # the service ends with the process that started it
            return size

    assert side_by_side(2, corpus_size) == [6, 6]
