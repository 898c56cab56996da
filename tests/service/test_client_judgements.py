"""All rewards of a client use one set of judgements and belong to the plans that it sent."""

import shutil
from pathlib import Path

import pytest
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.envs.client.client import Step, SyncEnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan, plan_digest
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError, EnvironmentUnavailableError

from ..raising import refused
from ..served import served
from ..several import free_port
from ..unit.test_envs_identical_ids import dataset, opened
from .test_client_outage import PATIENT, clock  # noqa: F401

STEPS = [Step(question_id="q-head", plan=SearchPlan.of(text, k=2)) for text in ("headache", "triptan headache")]


def judged_otherwise(config: EnvironmentConfig, folder: Path) -> EnvironmentConfig:
    """The same corpus and index with another grade for one document."""
    assert config.dataset.path is not None
    shutil.copytree(config.dataset.path, folder)
    qrels = folder / "qrels" / "test.tsv"
    text = qrels.read_text()
    assert "triptan\t2" in text
    qrels.write_text(text.replace("triptan\t2", "triptan\t1"))
    return config.model_copy(update={"dataset": DatasetConfig(kind="beir", path=str(folder))})


def app_of(config):
    return create_app(Environment.open(config), config)


@pytest.mark.parametrize("difference", ["qrels", "gain", "ivf_probes"])
def test_replicas_that_score_differently_are_refused(small_environment, tmp_path, run_app, difference):
    second = {
        "qrels": lambda: judged_otherwise(small_environment, tmp_path / "data"),
        "gain": lambda: small_environment.model_copy(update={"gain": "exponential"}),
        "ivf_probes": lambda: EnvironmentConfig.model_validate(
            {**small_environment.model_dump(), "vectors": {"ivf_probes": 8}}
        ),
    }[difference]()
    hashes = [Environment.open(config).settings_hash for config in (small_environment, second)]
    with (
        run_app(app_of(small_environment)) as url,
        run_app(app_of(second)) as other_url,
        SyncEnvironmentClient(ClientConfig(urls=[url, other_url])) as client,
    ):
        for call in (client.environment, lambda: client.step(STEPS), lambda: client.search([STEPS[0].plan])):
            with refused(ConfigError, url, other_url, *hashes) as failed:
                call()
            assert failed.value.exit_code == 2


def test_a_service_restarted_with_other_judgements_is_refused(small_environment, tmp_path):
    first = small_environment.model_copy(update={"port": free_port()})
    second = judged_otherwise(first, tmp_path / "data")
    hashes = [Environment.open(config).settings_hash for config in (first, second)]
    with SyncEnvironmentClient(ClientConfig(urls=[f"http://127.0.0.1:{first.port}"])) as client:
        with served(first, tmp_path):
            results = client.step(STEPS)
        with served(first, tmp_path):
            assert client.step(STEPS) == results, "a restart alone is nothing"
        with served(second, tmp_path):
            for call in (lambda: client.step(STEPS), lambda: client.search([STEPS[0].plan])):
                with refused(ConfigError, *hashes):
                    call()


class Forging:
    """The real service whose answers `forge` changes: it gets the first body that was answered, this one and its
    headers, and returns the body to send."""

    def __init__(self, app, forge):
        self.app, self.forge, self.first = app, forge, None

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        messages = []

        async def collect(message):
            messages.append(message)

        await self.app(scope, receive, collect)
        headers = {name: value for name, value in messages[0]["headers"] if name != b"content-length"}
        body = b"".join(message.get("body", b"") for message in messages[1:])
        self.first = self.first or body
        sent = self.forge(self.first, body, headers)
        await send({**messages[0], "headers": list(headers.items())})
        await send({"type": "http.response.body", "body": sent})


def without_id(_, body, headers):
    del headers[b"x-request-id"]
    return body


def with_another_id(_, body, headers):
    headers[b"x-request-id"] = b"another"
    return body


@pytest.mark.parametrize(("forge", "reason"), [(without_id, "is None"), (with_another_id, "is 'another'")])
def test_an_answer_with_another_request_id_is_a_failed_attempt(environment, small_environment, run_app, forge, reason):
    with (
        run_app(Forging(create_app(environment, small_environment), forge)) as url,
        SyncEnvironmentClient(PATIENT, [url]) as client,
    ):
        assert client.step(STEPS) == [None, None]
        assert f"X-Request-ID {reason}" in client.last_failure.reason
        assert client.stats.unscorable == 2


@pytest.mark.parametrize("call", ["step", "search"])
def test_the_answer_to_another_request_of_equal_shape_is_a_failed_attempt(
    environment, small_environment, run_app, call
):
    """A cache in between may send the right id with the wrong body, whose plans differ."""

    with (
        run_app(Forging(create_app(environment, small_environment), lambda first, *_: first)) as url,
        SyncEnvironmentClient(PATIENT, [url]) as client,
    ):
        if call == "step":
            assert client.step(STEPS[:1])[0] is not None
            assert client.step(STEPS[1:]) == [None]
        else:
            assert client.search([STEPS[0].plan])
            with refused(EnvironmentUnavailableError, "other plans"):
                client.search([STEPS[1].plan])
        assert "plan" in client.last_failure.reason


def test_a_plan_without_the_questions_document_is_answered_by_digest(tmp_path, run_app):
    environment = opened(tmp_path, dataset(), ignore_identical_ids=True)
    plan = SearchPlan.of("taxes rise")
    with (
        run_app(create_app(environment, EnvironmentConfig())) as url,
        SyncEnvironmentClient(PATIENT, [url]) as client,
    ):
        without_own, unrestricted = client.step([Step(question_id=name, plan=plan) for name in ("a", "x")])
    assert without_own.plan_digest == unrestricted.plan_digest == plan_digest(plan)
    assert {hit.id for hit in unrestricted.ranking} - {hit.id for hit in without_own.ranking} == {"a"}


def test_a_forged_answer_is_asked_for_again(environment, small_environment, run_app):
    answers = []

    def once(first, body, headers):
        answers.append(body)
        return body if len(answers) > 1 else with_another_id(first, body, headers)

    with (
        run_app(Forging(create_app(environment, small_environment), once)) as url,
        SyncEnvironmentClient(ClientConfig(urls=[url])) as client,
    ):
        assert [result.plan_digest for result in client.step(STEPS)] != ["", ""]
        assert (client.stats.failures, client.stats.unscorable) == (1, 0)
