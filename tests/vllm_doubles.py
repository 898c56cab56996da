"""vLLM without a GPU: its Python interface and its HTTP routes, answered by plain forward passes of a real model.

What the doubles take and give is what vLLM 0.30.0 takes and gives where this project touches it: LLM, SamplingParams
and RequestOutput for an engine in the process, and for a server the routes that TRL's VLLMClient calls. Sample j of a
request with seed s draws from a generator with the seed s + j, as vLLM does. Weights reach the server through a queue
in the place of NCCL, or through the real files. TRL's client is the real one.
"""

import queue
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from querylect.rollouts.engines import vllm as vllm_engine
from querylect.rollouts.engines import vllm_server
from safetensors.torch import load_file


class Model:
    """A causal language model that draws one token after the other from its processed distribution."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.loaded = []
        """The parameter names of each update."""

    @torch.no_grad()
    def draw(self, prompt, seed, temperature, top_p, max_tokens, stop):
        generator = torch.Generator().manual_seed(seed % 2**63)
        ids, logprobs = [], []
        while len(ids) < max_tokens and not (ids and ids[-1] in stop):
            logits = self.model(torch.tensor([[*prompt, *ids]])).logits[0, -1]
            scores = torch.log_softmax(logits / (temperature or 1.0), -1)
            ranked, order = scores.sort(descending=True)
            outside_nucleus = ranked.exp().cumsum(0) - ranked.exp() >= top_p
            scores[order[outside_nucleus]] = -torch.inf
            scores = torch.log_softmax(scores, -1)
            drawn = torch.multinomial(scores.exp(), 1, generator=generator) if temperature else scores.argmax()
            ids.append(token := int(drawn))
            logprobs.append(float(scores[token]))
        return ids, logprobs

    @torch.no_grad()
    def load(self, weights):
        parameters = dict(self.model.named_parameters())
        self.loaded.append([])
        for name, weight in weights:
            parameters[name].copy_(weight)
            self.loaded[-1].append(name)


STARTED = []
"""The engines of the current test."""


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int = 16
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: str = "cumulative"

    def __post_init__(self):
        assert self.n == 1 or self.temperature, "vLLM refuses several greedy samples"


class LLM:
    """vllm.LLM. Sleep at level 2 discards its weights, and waking up does not restore them."""

    def __init__(self, model, **settings):
        self.settings, self.answers, self.awake, self.requests = settings, Model(model), {"weights", "kv_cache"}, []
        self.events, self.running = [], {}
        STARTED.append(self)

    def generate(self, prompts, sampling_params, *, use_tqdm=True):
        assert self.awake == {"weights", "kv_cache"}, "it sleeps"
        self.requests += list(zip(prompts, sampling_params, strict=True))
        return [
            SimpleNamespace(outputs=[self._complete(prompt["prompt_token_ids"], params, j) for j in range(params.n)])
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]

    def _complete(self, prompt, params, j):
        assert params.ignore_eos, "only the given ids stop"
        ids, logprobs = self.answers.draw(
            prompt, params.seed + j, params.temperature, params.top_p, params.max_tokens, params.stop_token_ids
        )
        top_logprobs = [{token: SimpleNamespace(logprob=value)} for token, value in zip(ids, logprobs, strict=True)]
        return SimpleNamespace(token_ids=tuple(ids), logprobs=top_logprobs, finish_reason="stop", left=len(ids))

    @property
    def llm_engine(self):
        return self

    def add_request(self, request_id, prompt, params):
        assert self.awake == {"weights", "kv_cache"}, "it sleeps"
        assert prompt["type"] == "token", "raw prompts are deprecated"
        assert params.output_kind == "final only", "a token for each step otherwise"
        assert request_id not in self.running
        self.requests.append((prompt, params))
        self.running[request_id] = self._complete(prompt["prompt_token_ids"], params, 0)

    def step(self):
        """One token of every request: those are finished that have had as many steps as tokens."""
        finished = []
        for request_id, output in list(self.running.items()):
            output.left -= 1
            if not output.left:
                finished.append(SimpleNamespace(request_id=request_id, finished=True, outputs=[output]))
                del self.running[request_id]
        return finished

    def abort_request(self, request_ids):
        for request_id in request_ids:
            del self.running[request_id]

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        assert method == "reload_weights"
        assert "weights" in self.awake, "there is no memory to load into"
        self.events.append("load")
        self.answers.load(kwargs["weights_iterator"])
        return [None]

    def apply_model(self, func):
        """A double has no layers of vLLM."""

    def reset_prefix_cache(self):
        self.events.append("reset")
        return True

    def sleep(self, level=1, mode="abort"):
        assert self.settings["enable_sleep_mode"]
        assert level == 2
        self.events.append("sleep")
        self.awake = set()
        with torch.no_grad():
            for weight in self.answers.model.parameters():
                weight.fill_(torch.nan)

    def wake_up(self, tags=None):
        self.events.append(f"wake {tags[0]}")
        self.awake |= set(tags)


@dataclass
class Server:
    """What a running server knows, and the requests that it got."""

    answers: Model
    info: dict
    requests: list = field(default_factory=list)
    events: list = field(default_factory=list)
    wire: queue.Queue = field(default_factory=queue.Queue)
    down: bool = False
    """Whether it neither answers nor reads files of weights."""


def create_app(server):
    from fastapi import FastAPI, HTTPException

    app = FastAPI()

    def route(add, path, answer, event=None):
        """A route that gives one answer, and may note that it was called."""

        @add(path)
        def give():
            if event:
                server.events.append(event)
            return answer

    route(app.get, "/health", {})
    route(app.get, "/v1/models", {"object": "list", "data": [{"id": "the-policy", "object": "model"}]})
    route(app.get, "/server_info", {"vllm_config": server.info, "vllm_env": {}, "system_env": {}})
    route(app.get, "/get_world_size", {"world_size": 1})
    route(app.post, "/start_weight_update", {"message": "Weight update started"}, "start")
    route(app.post, "/finish_weight_update", {"message": "Weight update finished"}, "finish")
    route(app.post, "/reset_prefix_cache", {"success": True}, "reset")
    route(app.post, "/init_weight_transfer_engine", {"message": "Weight transfer initialized"}, "init")

    @app.post("/v1/completions")
    def completions(body: dict):
        if server.down:
            raise HTTPException(400, "the engine is dead")
        server.requests.append(body)
        assert body["ignore_eos"], "only the given ids stop"
        choices = []
        for prompt in body["prompt"]:
            for j in range(body["n"]):
                ids, logprobs = server.answers.draw(
                    prompt, body["seed"] + j, body["temperature"], body["top_p"], body["max_tokens"],
                    body["stop_token_ids"],
                )  # fmt: skip
                tokens = [f"token_id:{token}" for token in ids]
                tops = [{token: value} for token, value in zip(tokens, logprobs, strict=True)]
                values = {"text_offset": [], "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": tops}
                ended = {"finish_reason": "stop", "stop_reason": None, "text": "…", "prompt_logprobs": None}
                choices.append(
                    {"index": len(choices), "logprobs": values, "token_ids": ids, "prompt_token_ids": prompt, **ended}
                )
        return {"id": "cmpl-1", "object": "text_completion", "model": "the-policy", "choices": choices}

    @app.post("/update_weights")
    def update(body: dict):
        info = body["update_info"]
        received = []
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            weight = server.wire.get(timeout=60)
            assert (str(weight.dtype), list(weight.shape)) == (f"torch.{dtype}", shape), name
            received.append((name, weight))
        server.answers.load(received)
        server.events.append("update")
        return {"message": "Weights updated"}

    @app.post("/collective_rpc")
    def call_workers(body: dict):
        method, arguments = body["method"], body["kwargs"]
        server.events.append(method)
        if method == "reload_weights":
            files = sorted(Path(arguments["weights_path"]).glob("*.safetensors"))
            if server.down or not files:
                raise HTTPException(500, "Cannot find any model weights")
            server.answers.load([pair for file in files for pair in load_file(file).items()])
        return {"results": [None]}

    return app


def install_vllm(patch):
    """Install the doubles as the module vllm. TRL must have been imported before."""
    from trl.generation import vllm_client

    module = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    module.LLM, module.SamplingParams = LLM, SamplingParams
    patch.setitem(sys.modules, "vllm", module)
    params = ModuleType("vllm.sampling_params")
    params.RequestOutputKind = SimpleNamespace(FINAL_ONLY="final only")
    patch.setitem(sys.modules, "vllm.sampling_params", params)
    patch.setattr(vllm_client, "is_vllm_available", lambda *_, **__: True)
    patch.setattr(vllm_engine, "_started", [])
    STARTED.clear()
    patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")


@contextmanager
def serving(run_app, patch, folder, **info):
    """A server for the model of `folder`; yields its URL and the double."""
    from trl.generation import vllm_client

    config = {
        "model_config": {"logprobs_mode": "processed_logprobs"},
        "cache_config": {"enable_prefix_caching": True},
        "weight_transfer_config": {"backend": "nccl"},
        "device_config": {"device": "cuda"},
        "parallel_config": {"worker_extension_cls": ""},
    }
    server = Server(Model(folder), {**config, **info})

    def send(iterator, group, src, post_iter_func):
        for item in iterator:
            group.wire.put(post_iter_func(item).clone())

    group = SimpleNamespace(wire=server.wire, group=SimpleNamespace())
    patch.setattr(vllm_client, "_HAS_STATEFUL_TRAINER_ENGINE", True)
    patch.setattr(vllm_client, "get_ip", lambda: "127.0.0.1", raising=False)
    patch.setattr(vllm_client, "open_trainer_endpoint", lambda info: group, raising=False)
    patch.setattr(vllm_client, "packed_nccl_broadcast_producer", send, raising=False)
    patch.setattr(vllm_server, "transfer_device", lambda: torch.device("cuda"))
    with run_app(create_app(server)) as url:
        yield url, server


@pytest.fixture
def vllm(monkeypatch):
    """vLLM is installed; the list of the engines that were started."""
    install_vllm(monkeypatch)
    return STARTED
