"""kill -9 in the middle of a training step: the service comes back, the run goes on, and no reward was invented."""

import textwrap
import threading

import pytest
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.train.run import train

from ..forked import Piped
from ..lessons import change, records, without_seconds
from ..several import free_port

pytestmark = pytest.mark.server

SERVICE = textwrap.dedent(
    """
    import sys, time
    from querylect.configs.schema import EnvironmentConfig
    from querylect.envs.environment import Environment
    from querylect.envs.server.serve import serve

    left, real = int(sys.argv[2]), Environment.rank
    def search(self, plans):
        global left
        left -= 1
        if left == 0:
            print("searching", flush=True)
            time.sleep(600)
        return real(self, plans)
    Environment.rank = search
    serve(EnvironmentConfig.model_validate_json(sys.argv[1]), ready=lambda url: print(url, flush=True))
    """
)


def test_a_killed_service_that_comes_back_changes_nothing_but_the_time(settings, lessons, tmp_path):
    """A real run against a real process that dies while it searches for the second step."""
    straight = train(change(settings, name="straight"))
    config = lessons.model_copy(update={"port": free_port()})

    def serving(searches):
        """The service in a process of its own; the search of that number never ends (0: all do)."""
        return Piped([config.model_dump_json(), str(searches)], tmp_path, code=SERVICE)

    first = serving(searches=4)
    url = first.stdout.readline().strip()
    began_again = []

    def kill_in_the_middle():
        assert first.stdout.readline() == "searching\n"
        first.kill()
        first.wait(60)
        began_again.append(serving(searches=0))

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    try:
        run = train(change(settings, **{"name": "killed", "client.urls": [url], "client.deadline": 2400}))
    finally:
        killer.join(60)
        for process in [first, *began_again]:
            process.close()
    assert began_again, "the service was killed during the run"
    metrics = records(run / "metrics.jsonl")
    assert len(metrics) == 4
    assert all(line["failed_search/turn1"] == line["failed_search/turn2"] == 0 for line in metrics)
    assert without_seconds(run / "metrics.jsonl") == without_seconds(straight / "metrics.jsonl")
    turns = [[tree["turns"] for tree in records(folder / "rollouts.jsonl")] for folder in (run, straight)]
    assert turns[0] == turns[1], "the same samples with the same rewards, none twice and none missing"
    environment, graded = Environment.open(lessons), 0
    for tree in records(run / "rollouts.jsonl"):
        for node in [*tree["turns"], *(child for turn in tree["turns"] for child in turn["children"])]:
            if not node["failure"]:
                (ranking,) = environment.rank([SearchPlan.of(node["rewrites"][0])])
                assert node["ranking"] == [hit.id for hit in ranking]
                assert (
                    node["metrics"]["ndcg@10"]
                    == environment.score(tree["question_id"], ranking, ["ndcg@10"])["ndcg@10"]
                )
                graded += 1
    assert graded > 20, "and they are what those rankings are worth"
