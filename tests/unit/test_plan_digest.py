"""The digest of a plan is the same in client and service, and differs between plans."""

from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.section import MAX_WEIGHT
from querylect.envs.plan import Probe, SearchPlan, Term, plan_digest
from querylect.envs.schemas import Step, StepRequest

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TERMS = st.builds(Term, text=TEXTS, weight=st.floats(-MAX_WEIGHT, MAX_WEIGHT))
PROBES = st.builds(Probe, terms=st.lists(TERMS, min_size=1, max_size=3).map(tuple), k=st.none() | st.integers(1, 10**6))
PLANS = st.builds(
    SearchPlan,
    probes=st.lists(PROBES, min_size=1, max_size=3).map(tuple),
    fuse=st.sampled_from(["max", "rrf", "interleave", "sum"]),
    k=st.integers(1, 1000),
)


@given(PLANS)
def test_the_service_reads_the_digest_that_the_client_computes(plan):
    body = StepRequest(steps=[Step(question_id="q", plan=plan)]).model_dump_json()
    assert plan_digest(StepRequest.model_validate_json(body).steps[0].plan) == plan_digest(plan)


@given(PLANS, PLANS)
def test_other_plans_have_other_digests(first, second):
    assert (plan_digest(first) == plan_digest(second)) == (first.model_dump_json() == second.model_dump_json())
