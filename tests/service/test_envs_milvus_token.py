"""A Milvus server that checks tokens: milvus-lite's service behind the check that Milvus makes of every call."""

import base64
import traceback
from concurrent import futures

import grpc
import pytest
from milvus_lite.adapter.grpc.servicer import MilvusServicer
from milvus_lite.db import MilvusLite
from pymilvus.grpc_gen import milvus_pb2_grpc
from querylect.configs.environment import EnvironmentConfig, MilvusConfig
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.errors import ConfigError

from ..command import end
from ..raising import refused
from ..wings import PROBES, documents, plan, save

VARIABLE = "QUERYLECT_MILVUS_TOKEN"
PLANS = [plan(terms) for terms in PROBES]
TOKENS = ["reader:pass-of-the-reader", "an-api-key-without-a-colon"]


class TokenCheck(grpc.ServerInterceptor):
    """Refuses a call without the token, base64 in the header `authorization`, as Milvus with authorization enabled.

    milvus-lite itself ignores the header.
    """

    def __init__(self, token):
        self.token = token

    def intercept_service(self, continuation, details):
        sent = dict(details.invocation_metadata).get("authorization", "")
        if base64.b64decode(sent).decode() == self.token:
            return continuation(details)

        def refuse(request, context):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "auth check failure, please check api key is correct")

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture
def dataset(tmp_path):
    return save(tmp_path / "mine", documents(50))


@pytest.fixture
def serve(tmp_path):
    """Serves a database to those who send the token; returns its URL and the check."""
    database = MilvusLite(str(tmp_path / "served"))
    server = None

    def start(token):
        nonlocal server
        check = TokenCheck(token)
        server = grpc.server(futures.ThreadPoolExecutor(4), interceptors=[check])
        milvus_pb2_grpc.add_MilvusServiceServicer_to_server(MilvusServicer(database), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return f"http://127.0.0.1:{port}", check

    yield start
    if server:
        server.stop(None).wait()
    database.close()


def shows(text, token):
    """Whether a text contains the token, or its form in the header."""
    return token in text or base64.b64encode(token.encode()).decode() in text


@pytest.mark.parametrize("token", TOKENS)
def test_the_right_token_loads_and_searches_a_collection(token, dataset, serve, tmp_path, monkeypatch):
    local = EnvironmentConfig(dataset=dataset, index=str(tmp_path / "local"))
    build_index(local)
    url, check = serve(token)
    monkeypatch.setenv(VARIABLE, token)
    config = local.model_copy(
        update={"index": str(tmp_path / "index"), "engine": "milvus", "milvus": MilvusConfig(uri=url)}
    )
    build_index(config)
    environment = Environment.open(config)
    assert environment.search(PLANS) == Environment.open(local).search(PLANS)
    check.token = "another"
    with refused(ConfigError, url, VARIABLE) as caught:
        environment.search(PLANS)
    assert not shows("".join(traceback.format_exception(caught.value)), token)


@pytest.mark.parametrize("token", [*TOKENS, None])
def test_a_wrong_or_missing_token_is_refused_and_not_shown(token, dataset, serve, tmp_path, monkeypatch, caplog, capfd):
    url, _ = serve("another")
    if token:
        monkeypatch.setenv(VARIABLE, token)
    else:
        monkeypatch.delenv(VARIABLE, raising=False)
    settings = {"dataset.kind": "beir", "dataset.path": dataset.path, "engine": "milvus", "milvus.uri": url}
    arguments = [f"env.{name}={value}" for name, value in settings.items()]
    assert end("index", "build", "demo", *arguments, f"env.index={tmp_path / 'index'}") != 0
    output = "".join(capfd.readouterr())
    assert VARIABLE in output
    assert url in output
    if token:
        assert not shows(output + caplog.text, token)
    assert not (tmp_path / "index").exists()
