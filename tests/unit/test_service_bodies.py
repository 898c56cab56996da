"""Entries of a JSON text are counted in its bytes as they stand in what a parser builds from it."""

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from querylect.configs.schema import EnvironmentConfig
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.schemas import MAX_ERRORS, MAX_METRICS, SearchRequest, Step, StepRequest
from querylect.envs.server import bodies
from querylect.envs.server.bodies import ENTRY_BYTES, OPEN_REQUESTS, BodyLimits, EntryCounter
from querylect.envs.wire import limits_of

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='\\"{}[],:u0022é∢\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('",\\{a', max_size=3), inner, max_size=4),
    max_leaves=30,
)


def entries(value):
    """Entries of all lists and objects; an empty one counts as if it had one."""
    if not isinstance(value, (list, dict)):
        return 0
    inner = value if isinstance(value, list) else list(value.values())
    return max(1, len(inner)) + sum(map(entries, inner))


def counted(*pieces):
    counter = EntryCounter()
    for piece in pieces:
        counter.feed(piece)
    return counter.entries


@given(VALUES, st.booleans(), st.lists(st.integers(0, 200), max_size=6))
def test_the_count_is_that_of_the_parsed_value_however_the_bytes_are_cut(value, ascii_only, cuts):
    body = json.dumps(value, ensure_ascii=ascii_only, separators=(", ", " : ")).encode()
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert counted(*(body[a:b] for a, b in pairwise(bounds))) == entries(value)


def test_the_largest_request_within_the_limits_is_taken():
    """As its client writes it, with every field."""
    limits = limits_of(EnvironmentConfig(max_plans=3, max_request_terms=7))
    probe = Probe(terms=(Term(text="a"),), k=1, source=None)
    plans = [SearchPlan(probes=(probe,) * n) for n in (1, 1, 5)]
    steps = [Step(question_id="q", plan=plan) for plan in plans]
    body = StepRequest(steps=steps, metrics=["m"] * MAX_METRICS).model_dump_json().encode()
    assert limits.max_entries - 2048 <= counted(body) <= limits.max_entries


def small_limits():
    return BodyLimits(max_bytes=1000, max_entries=10, read_seconds=60)


def received(limits, *bodies_of_requests):
    """The result of reading each body while all of them are open: its size, or the status of the refusal."""

    async def read_bodies(stack):
        outcomes = []
        for body in bodies_of_requests:

            async def receive(body=body):
                return {"type": "http.request", "body": body, "more_body": False}

            limited = await stack.enter_async_context(limits.limited(receive))
            try:
                outcomes.append(len((await limited())["body"]))
            except HTTPException as error:
                outcomes.append(error.status_code)
        return outcomes

    async def run():
        async with AsyncExitStack() as stack:
            return await read_bodies(stack)

    return asyncio.run(run())


def test_all_requests_together_hold_a_bounded_number_of_bytes():
    """Bodies and what is built from them; what was answered counts no more."""
    limits = small_limits()
    largest = b"[" * 10 + b" " * 990
    assert received(limits, *[largest] * (OPEN_REQUESTS + 1)) == [1000] * OPEN_REQUESTS + [503]
    assert received(limits, largest) == [1000]
    assert limits.open_bytes == 0
    for body, size in ((b" " * 1000, 1000), (b"[1,2,3]", 7 + 3 * ENTRY_BYTES)):
        taken = OPEN_REQUESTS * (1000 + 10 * ENTRY_BYTES) // size
        assert received(limits, *[body] * (taken + 1)) == [len(body)] * taken + [503]


@pytest.mark.parametrize(("body", "status"), [(b"[" * 11, 413), (b"x" * 1001, 413), ('{"é": 1}'.encode("utf-16"), 400)])
def test_a_body_beyond_a_limit_is_refused_and_forgotten(body, status):
    limits = small_limits()
    assert received(limits, body) == [status]
    assert limits.open_bytes == 0


def test_others_are_served_between_long_bodies(monkeypatch):
    """The event loop makes at least one pass between two of them."""
    monkeypatch.setattr(bodies, "SMALL_BYTES", 10)
    limits, log = small_limits(), []

    async def receive():
        return {"type": "http.request", "body": b" " * 20, "more_body": False}

    async def request():
        async with limits.limited(receive) as limited:
            await limited()
            log.append("parsed")

    async def run():
        requests = asyncio.gather(*(request() for _ in range(5)))
        while not requests.done():
            log.append("another")
            await asyncio.sleep(0)

    asyncio.run(run())
    assert log.count("parsed") == 5
    assert all(pair != ("parsed", "parsed") for pair in pairwise(log))


@pytest.mark.parametrize(
    "body",
    [
        {"plans": [{}] * 5000},
        {"plans": [{"probes": [{"terms": [{}] * 5000}]}]},
        {"plans": [], **{f"key {n}": 0 for n in range(5000)}},
    ],
)
def test_the_errors_of_a_request_are_few(body):
    with pytest.raises(ValidationError) as error:
        SearchRequest.model_validate(body)
    assert error.value.error_count() <= MAX_ERRORS
