"""Signals: a flag that is read after a step, the same in all processes."""

import os
import signal
from types import SimpleNamespace

import pytest
from querylect.train.processes import Processes
from querylect.train.stopping import SIGNALS, StopOnSignal

pytestmark = pytest.mark.model

TERM, USR1, INT = int(signal.SIGTERM), int(signal.SIGUSR1), int(signal.SIGINT)
STEP = {"loss": 0.0}
LAST = SimpleNamespace(global_step=3, max_steps=9)


@pytest.fixture(autouse=True)
def heard():
    """Who starts the tests may have had signals ignored: nohup SIGHUP, a shell Ctrl-C of what it runs beside itself."""
    previous = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def control():
    return SimpleNamespace(should_training_stop=False, should_save=False)


@pytest.mark.parametrize("number", [TERM, USR1, INT, int(signal.SIGHUP)])
def test_a_signal_ends_the_run_with_a_checkpoint_after_the_step(number):
    stopper = StopOnSignal(Processes())
    handler = signal.getsignal(number)
    with stopper.listening():
        stopper.on_train_begin(None, None, None)
        stopper.on_log(None, LAST, before := control(), STEP)
        os.kill(os.getpid(), number)
        stopper.on_log(None, LAST, other := control(), {"eval_ndcg": 1.0})
        stopper.on_log(None, LAST, after := control(), STEP)
    assert signal.getsignal(number) == handler
    assert [vars(of) for of in (before, other)] == [vars(control())] * 2, "a validation's record is not a step's"
    assert after.should_save
    assert after.should_training_stop
    assert stopper.stopped_by == number


def test_a_second_ctrl_c_does_not_wait_for_the_step():
    stopper = StopOnSignal(Processes())
    with stopper.listening():
        stopper.on_train_begin(None, None, None)
        os.kill(os.getpid(), TERM)
        os.kill(os.getpid(), INT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), INT)


def test_what_one_process_asks_for_all_do():
    """A signal to the second of two processes, and a guard that speaks in the main process alone."""

    class Second(Processes):
        def all_gather(self, value):
            return [(None, True, True), value]

    stopper = StopOnSignal(Second(1, 2))
    stopper.on_log(None, LAST, guarded := control(), STEP)
    assert vars(guarded) == {"should_training_stop": True, "should_save": True}

    class Told(Processes):
        def all_gather(self, value):
            return [value, (TERM, False, False)]

    stopper = StopOnSignal(Told(0, 2))
    stopper.on_log(None, LAST, told := control(), STEP)
    assert vars(told) == {"should_training_stop": True, "should_save": True}
    assert stopper.stopped_by == TERM


def test_a_stop_waits_for_the_last_step_on_a_rollout():
    stopper, args = StopOnSignal(Processes()), SimpleNamespace(num_iterations=2)
    steps = [SimpleNamespace(global_step=step, max_steps=9) for step in (3, 4)]
    with stopper.listening():
        stopper.on_train_begin(None, None, None)
        os.kill(os.getpid(), TERM)
        stopper.on_log(args, steps[0], first := control(), STEP)
        stopper.on_log(args, steps[1], second := control(), STEP)
    assert [vars(of) for of in (first, second)] == [
        {"should_training_stop": done, "should_save": done} for done in (False, True)
    ]
