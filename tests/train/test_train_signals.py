"""A signal during a training step, with a fake clock: the step is finished, aborted at once, or aborted in time."""

import os
import signal
from types import SimpleNamespace

import pytest
from querylect.configs.schema import TrainConfig
from querylect.train.distributed import stopping
from querylect.train.distributed.abort import AbortStep
from querylect.train.distributed.collectives import CollectiveStop
from querylect.train.distributed.processes import Processes
from querylect.train.distributed.stopping import StopOnSignal

TERM, USR1 = int(signal.SIGTERM), int(signal.SIGUSR1)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, and an alarm that only records its delay."""
    fake = SimpleNamespace(now=1000.0, alarm=None)
    monkeypatch.setattr(stopping.time, "perf_counter", lambda: fake.now)
    monkeypatch.setattr(stopping.signal, "setitimer", lambda _, seconds: setattr(fake, "alarm", seconds))
    return fake


def stopper(clock, steps=(), saving=None, under_way=0.0, **settings):
    """The callback `under_way` seconds into a step, after steps of these lengths and a checkpoint of `saving`."""
    callback = StopOnSignal(TrainConfig(**settings))
    callback.trainer = SimpleNamespace(saving_seconds=saving)
    for seconds in steps:
        callback.on_step_begin(None, None, None)
        clock.now += seconds
        callback.on_step_end(None, None, SimpleNamespace())
    callback.on_step_begin(None, None, None)
    clock.now += under_way
    return callback


@pytest.mark.parametrize(
    ("steps", "saving", "under_way", "alarm"),
    [
        ([30, 10, 20], 2, 10, 21),  # the longest took 30: 20 more, and 25 − 2·2 are there
        ([30, 10, 20], 2, 8, None),  # 22 more
        ([40, 10, 10, 10, 10, 10], 2, 0, 21),  # the long one is forgotten after five
        ([40, 10, 10, 10, 10], 2, 0, None),
        ([16], None, 0, 25 * 2 / 3),  # a third is kept for a checkpoint that nobody has timed
        ([17], None, 0, None),
        ([1], 12.5, 0, None),  # there is time for nothing but the checkpoint
        ([], 2, 0, None),  # nobody knows how long a step takes
        ([30], 2, 100, 21),  # it should have ended: the alarm decides
    ],
)
def test_a_step_is_finished_where_the_longest_of_five_and_two_saves_fit(clock, steps, saving, under_way, alarm):
    callback = stopper(clock, steps, saving, under_way, grace_seconds=25.0)  # own clock
    if alarm is None:
        with pytest.raises(AbortStep):
            callback._note(TERM, None)
    else:
        callback._note(TERM, None)
        assert clock.alarm == pytest.approx(alarm)
        with pytest.raises(AbortStep):
            callback._out_of_time(int(signal.SIGALRM), None)
    assert callback.name == "SIGTERM"


@pytest.mark.parametrize("ignored", [False, True])
def test_a_lost_terminal_is_a_signal_like_sigterm_unless_nohup_ignores_it(clock, ignored):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    callback = stopper(clock, [20], 1, grace_seconds=50.0)  # own clock
    try:
        with callback.listening():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert (callback.received, callback.name) == ((None, "no signal") if ignored else (signal.SIGHUP, "SIGHUP"))


def test_each_signal_has_its_own_grace(clock):
    settings = {"grace_seconds": 5.0, "usr1_grace_seconds": 50.0}  # own clock
    stopper(clock, [20], 1, **settings)._note(USR1, None)
    assert clock.alarm == 48
    with pytest.raises(AbortStep):
        stopper(clock, [20], 1, **settings)._note(TERM, None)


@pytest.mark.parametrize("number", [TERM, USR1, int(signal.SIGINT), int(signal.SIGALRM)])
@pytest.mark.parametrize("phase", ["update", "last checkpoint"])
def test_no_step_is_aborted_after_a_weight_changed_nor_during_the_final_save(clock, number, phase):
    callback = stopper(clock, [], None, grace_seconds=0.0)  # own clock

    def come():
        callback._note(TERM if number == signal.SIGALRM else number, None)
        if number == signal.SIGALRM:
            callback._out_of_time(number, None)

    if phase == "update":
        callback.on_pre_optimizer_step(None, None, None)
        come()
        callback._changing = False
    else:
        with callback.to_the_end():
            come()
    assert callback.received == (TERM if number == signal.SIGALRM else number)
    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            callback.on_step_begin(None, None, None)


def test_a_finished_step_is_saved_and_the_last(clock):
    callback = stopper(clock, [10], 1, grace_seconds=100.0)  # own clock
    callback._note(TERM, None)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_step_end(None, None, control)
    assert control.should_save
    assert control.should_training_stop


def test_a_signal_between_a_step_and_its_record_bounds_the_next_step(clock):
    callback = stopper(clock, [3], 1, grace_seconds=25.0)  # own clock
    callback.on_pre_optimizer_step(None, None, None)
    callback.on_step_end(None, None, SimpleNamespace())
    callback._note(TERM, None)
    assert clock.alarm is None
    callback.on_step_begin(None, None, None)
    assert clock.alarm == 23
    slow = stopper(clock, [30], 1, grace_seconds=25.0)  # own clock
    slow.on_pre_optimizer_step(None, None, None)
    slow.on_step_end(None, None, SimpleNamespace())
    slow._note(TERM, None)
    with pytest.raises(AbortStep):
        slow.on_step_begin(None, None, None)


def test_between_steps_a_signal_ends_the_run_at_once_however_long_the_grace(clock):
    callback = stopper(clock, [1], 0.1, grace_seconds=1e6)  # own clock
    callback.on_pre_optimizer_step(None, None, None)
    with callback.between_steps(), pytest.raises(AbortStep):
        callback._note(TERM, None)


@pytest.mark.parametrize("number", [TERM, USR1, int(signal.SIGINT)])
def test_a_signal_during_a_report_is_reported_at_the_next_collective(number):
    """Of two processes, this one gets the signal after it has reported that it had none."""

    class Late(Processes):
        def all_gather(self, value):
            gathered.append(value)
            if len(gathered) == 1:
                os.kill(os.getpid(), number)
            return [value, (None, False, False)]

    gathered, control = [], SimpleNamespace(should_training_stop=False, should_save=False)
    stop = CollectiveStop(TrainConfig(), Late(0, 2))
    with stop.listening():
        stop.meet(control)
        assert not control.should_training_stop
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                stop.meet(control)
        else:
            stop.meet(control)
            assert control.should_training_stop
            assert control.should_save
    assert [received for received, _, _ in gathered] == [None, number]
