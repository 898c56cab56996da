"""The questions of a step: weights, passes and the success so far, each against the documented formula."""

import json
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.curriculum import CurriculumConfig
from querylect.data.mixed_ids import join_id, split_id
from querylect.train.curriculum import Curriculum, Progress

QUESTIONS = {"bm25": [f"q{n}" for n in range(40)], "dense": [f"q{n}" for n in range(7)]}


def curriculum(weights=None, questions=None, seed=0, **settings):
    weights = weights or {"bm25": 3.0, "dense": 1.0}
    mixed = {
        name: [join_id(name, question_id) for question_id in ids] for name, ids in (questions or QUESTIONS).items()
    }
    return Curriculum(weights, mixed, CurriculumConfig(**settings), seed)


def drawn(course, steps, count, progress=None):
    """The mixed ids of each of the first steps, and the progress after them."""
    progress, drawn_ids = progress or Progress(), []
    for step in range(1, steps + 1):
        ids, progress = course.draw(progress, step, count)
        drawn_ids.append(ids)
    return drawn_ids, progress


@pytest.mark.parametrize(("share", "count"), [(0.3, 5), (0.1, 2)])
def test_weights_are_the_shares_of_many_draws_and_of_every_step_up_to_rounding(share, count):
    """1.5 of 5 questions, and a fifth of one of 2."""
    steps, _ = drawn(curriculum({"bm25": 1 - share, "dense": share}), 2000, count)
    counts = [sum(split_id(mixed)[0] == "dense" for mixed in step) for step in steps]
    assert set(counts) == {int(share * count), int(share * count) + 1}
    assert sum(counts) / 2000 / count == pytest.approx(share, abs=0.01)


def test_environments_are_not_in_blocks_within_a_step():
    steps, _ = drawn(curriculum({"bm25": 1.0, "dense": 1.0}), 50, 4)
    orders = {tuple(split_id(mixed)[0] for mixed in step) for step in steps}
    assert len(orders) > 4


def test_every_question_comes_once_a_pass_and_passes_differ():
    steps, _ = drawn(curriculum({"dense": 1.0}, {"dense": QUESTIONS["dense"]}), 6, 7)
    assert all(
        sorted(step) == sorted(join_id("dense", question_id) for question_id in QUESTIONS["dense"]) for step in steps
    )
    passes = [curriculum({"dense": 1.0}, {"dense": QUESTIONS["dense"]})._order("dense", number) for number in range(6)]
    assert len({tuple(order) for order in passes}) == 6


def test_no_question_comes_twice_in_a_step_while_there_are_others():
    """Seven questions, four per step: passes end in the middle of steps."""
    steps, _ = drawn(curriculum({"dense": 1.0}, {"dense": QUESTIONS["dense"]}), 200, 4)
    assert all(len(set(step)) == 4 for step in steps)
    counts = Counter(mixed for step in steps for mixed in step)
    assert max(counts.values()) - min(counts.values()) < 40, "what was passed over for it comes again"
    (step,), _ = drawn(curriculum({"dense": 1.0}, {"dense": ["a", "b"]}), 1, 5)
    assert sorted(Counter(step).values()) == [2, 3]


def test_another_seed_asks_questions_and_deals_environments_in_another_order():
    first, second = (drawn(curriculum({"bm25": 1.0, "dense": 1.0}, seed=seed), 6, 4)[0] for seed in (0, 1))
    assert first == drawn(curriculum({"bm25": 1.0, "dense": 1.0}), 6, 4)[0]
    for part in (0, 1):
        assert [[split_id(mixed)[part] for mixed in step] for step in first] != [
            [split_id(mixed)[part] for mixed in step] for step in second
        ]


def test_the_same_id_in_two_environments_is_two_questions():
    course = curriculum({"a": 1.0, "b": 1.0}, {"a": ["q"], "b": ["q"]}, prefer="hard", floor=0.1)
    progress = course.learn(Progress(), [("a/q", 1.0), ("b/q", 0.0)])
    assert progress.questions == {"a/q": 1.0, "b/q": 0.0}
    assert course.shares(progress) == pytest.approx({"a": 0.1 / 1.1, "b": 1 / 1.1})


@pytest.mark.parametrize(
    ("prefer", "chances"), [("none", [1, 1, 1, 1]), ("hard", [1, 0.8, 0.6, 0.2]), ("learnable", [0.2, 0.8, 1, 0.2])]
)
def test_chance_is_as_documented(prefer, chances):
    course = curriculum(prefer=prefer, floor=0.2)
    successes = [0.0, 0.25, 0.5, 1.0]
    assert [course.chance(success) for success in successes] == pytest.approx(chances)
    assert course.chance(None) == 1


@pytest.mark.parametrize(
    ("prefer", "bm25", "dense"), [("none", 3, 1), ("hard", 3 * 0.28, 0.92), ("learnable", 3 * 0.488, 0.488)]
)
def test_shares_shift_with_the_success_of_the_environments(prefer, bm25, dense):
    """floor 0.2, success 0.9 and 0.1: chances 0.28 and 0.92 (hard), 0.488 twice (learnable); weights 3 and 1."""
    course = curriculum(prefer=prefer, floor=0.2)
    progress = Progress({}, {"bm25": 0.9, "dense": 0.1})
    assert course.shares(progress) == pytest.approx({"bm25": bm25 / (bm25 + dense), "dense": dense / (bm25 + dense)})
    steps, _ = drawn(course, 1500, 4, progress)
    counts = Counter(split_id(mixed)[0] for step in steps for mixed in step)
    assert counts["bm25"] / 6000 == pytest.approx(bm25 / (bm25 + dense), abs=0.01)


def test_success_of_an_environment_is_a_running_mean_of_its_steps():
    course = curriculum(memory=0.75)
    progress = course.learn(Progress(), [("bm25/q1", 1.0), ("bm25/q2", 0.0)])
    assert progress.environments == {"bm25": 0.5}
    progress = course.learn(progress, [("bm25/q1", 0.1), ("dense/q1", 0.3), ("dense/q2", 0.9), ("dense/q1", 0.6)])
    assert progress.environments == pytest.approx({"bm25": 0.75 * 0.5 + 0.25 * 0.1, "dense": 0.6})
    assert progress.questions == pytest.approx({"bm25/q1": 0.1, "bm25/q2": 0.0, "dense/q1": 0.45, "dense/q2": 0.9})
    assert course.learn(progress, []) == progress, "a step without a score changes nothing"


def test_questions_are_passed_over_by_their_own_success():
    """Ten solved and ten hopeless questions, floor 0.25: under `hard` a solved one comes a quarter as often."""
    ids = [f"q{n}" for n in range(20)]
    course = curriculum({"a": 1.0}, {"a": ids}, prefer="hard", floor=0.25)
    progress = Progress(questions={join_id("a", question_id): float(n < 10) for n, question_id in enumerate(ids)})
    steps, after = drawn(course, 5000, 1, progress)
    counts = Counter(mixed for step in steps for mixed in step)
    solved = sum(counts[join_id("a", question_id)] for question_id in ids[:10])
    assert solved / (5000 - solved) == pytest.approx(0.25, abs=0.02)
    assert after.positions["a"] > 5000, "what is passed over is passed"


def test_nothing_starves_at_the_floor():
    ids = ["solved", "half"]
    course = curriculum({"a": 1.0}, {"a": ids}, prefer="learnable", floor=0.05)
    progress = Progress(questions={"a/solved": 1.0, "a/half": 0.5})
    counts = Counter(mixed for step in drawn(course, 4000, 1, progress)[0] for mixed in step)
    assert counts["a/solved"] / counts["a/half"] == pytest.approx(0.05, abs=0.015)


@given(st.integers(1, 6), st.sampled_from(["none", "hard", "learnable"]), st.integers(0, 3))
def test_a_run_that_goes_on_from_its_written_progress_draws_the_same(stop, prefer, seed):
    def run(course, first, last, progress):
        drawn_ids = []
        for step in range(first, last + 1):
            ids, progress = course.draw(progress, step, 5)
            drawn_ids.append(ids)
            progress = course.learn(progress, [(mixed, (hash_of(mixed) % 5) / 4) for mixed in ids])
        return drawn_ids, progress

    def hash_of(mixed):
        return sum(map(ord, mixed))

    uninterrupted, _ = run(curriculum(prefer=prefer, seed=seed), 1, 7, Progress())
    until_stop, progress = run(curriculum(prefer=prefer, seed=seed), 1, stop, Progress())
    again = Progress.from_plain(json.loads(json.dumps(asdict(progress))))
    assert again == progress
    resumed, _ = run(curriculum(prefer=prefer, seed=seed), stop + 1, 7, again)
    assert until_stop + resumed == uninterrupted


@pytest.mark.parametrize("slashed", ["a/b", "/a", "a/", "", "a"])
def test_an_id_with_slashes_comes_back_whole(slashed):
    assert split_id(join_id("env", slashed)) == ("env", slashed)


def mixture():
    from querylect.configs.schema import RunConfig
    from querylect.data.types import Question
    from querylect.train.mix import Mixture

    members = {"bm25": {"weight": 3.0}, "dense": {"env": {"index": "other"}}}
    mix = {"environments": members, "curriculum": {"prefer": "hard", "memory": 0.5}}
    config = RunConfig.model_validate({"train": {"questions_per_step": 4}, "mix": mix})
    questions = [
        Question(join_id(name, question_id), question_id) for name, ids in QUESTIONS.items() for question_id in ids
    ]
    return Mixture(config.train, config.mix, config.reward.signal, config.seed, questions)


def step_of_slots(mix, finished):
    """The ids in two slots of the step after `finished` ones, as the rows of one process, a row per leaf."""
    rows = [{"prompt": slot, "leaf": leaf} for slot in mix.slots[1:3] for leaf in (0, 1)]
    filled = mix.fill(rows, finished)
    assert [row["leaf"] for row in filled] == [0, 1, 0, 1]
    assert filled[0]["prompt"] == filled[1]["prompt"]
    return [filled[0]["prompt"], filled[2]["prompt"]]


REACHED = {"bm25": 0.9, "dense": 0.1}


def tried(mixed_ids):
    """A tree of one turn for each question; BM25 succeeds nearly always, the other one rarely."""
    from ..train.test_train_credit import node, tree

    trees = [tree(node(REACHED[split_id(mixed)[0]]), name=mixed) for mixed in mixed_ids]
    for question_tree in trees:
        question_tree.roots[0].metrics = {"ndcg@10": question_tree.roots[0].reward}
    return trees


def test_progress_belongs_to_finished_steps(tmp_path):
    """A step that is given up is drawn again as it was, and a checkpoint of the step before knows nothing of it."""
    mix = mixture()
    first = step_of_slots(mix, 0)
    mix.learn(tried(first), 0)
    assert step_of_slots(mix, 0) == first, "given up after its rollout"
    mix.learn(tried(first), 0)
    mix.save(tmp_path, 0)
    assert json.loads((tmp_path / "mix.json").read_text()) == asdict(Progress())
    second = step_of_slots(mix, 1)
    shares = mix.shares
    assert shares["bm25"] != 0.75, "what was learnt counts from the next step on"
    assert not set(first) & set(second)
    mix.save(tmp_path, 1)
    saved = json.loads((tmp_path / "mix.json").read_text())
    assert saved["questions"] == {mixed: REACHED[split_id(mixed)[0]] for mixed in first}
    assert sum(saved["positions"].values()) == 4, "all processes draw the whole step"
    again = mixture()
    again.load(tmp_path)
    assert step_of_slots(again, 1) == second
    assert again.shares == shares


def test_every_step_has_a_draw_of_its_own():
    mix, course = mixture(), curriculum(prefer="hard", memory=0.5)
    for finished in range(6):
        ids = [row["prompt"] for row in mix.fill([{"prompt": slot} for slot in mix.slots], finished)]
        assert ids == course.draw(mix.progress(finished), finished + 1, 4)[0]
        mix.learn(tried(ids), finished)


def test_two_steps_on_one_rollout_learn_from_it_once(tmp_path):
    """The rollout of steps 1 and 2 is behind the checkpoints of both, and step 3 draws anew."""
    mix = mixture()
    mix.learn(tried(step_of_slots(mix, 0)), 0)
    saved = []
    for finished in (1, 2):
        mix.save(tmp_path, finished)
        saved.append((tmp_path / "mix.json").read_text())
    assert saved[0] == saved[1]
    again = mixture()
    again.load(tmp_path)
    assert step_of_slots(again, 2) == step_of_slots(mix, 2)


def test_success_is_that_of_scored_last_turns():
    from querylect.train.mix import success

    from ..train.test_train_credit import node, tree

    question_tree = tree(node(0.9, 0.2, None, 0.6), node(0.9, 0.1))
    for leaf, metric in zip([path[-1] for path in question_tree.paths()], (0.1, 0.7, 0.5, 0.3), strict=True):
        leaf.metrics = {"ndcg@10": metric}
    assert success(question_tree, "ndcg@10") == pytest.approx(0.3), "the mean of .1, .5 and .3"
    assert success(tree(node(0.9, None)), "ndcg@10") is None
