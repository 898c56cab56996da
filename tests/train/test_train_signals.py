"""A signal during a training step: the step gets the grace period of the signal, or is aborted."""

import os
import signal
from types import SimpleNamespace

import pytest
from querylect.train.distributed import stopping
from querylect.train.distributed.abort import AbortStep
from querylect.train.distributed.collectives import CollectiveStop
from querylect.train.distributed.processes import Processes
from querylect.train.distributed.stopping import StopOnSignal

TERM, USR1 = int(signal.SIGTERM), int(signal.SIGUSR1)


@pytest.fixture
def alarms(monkeypatch):
    """The delays of the alarms that were set, none of which rings."""
    delays = []
    monkeypatch.setattr(stopping.signal, "setitimer", lambda _, seconds: delays.append(seconds))
    return delays


def in_a_step():
    callback = StopOnSignal()
    callback.on_step_begin(None, None, None)
    return callback


@pytest.mark.parametrize(("number", "grace"), [(TERM, 15), (USR1, 480)])
def test_a_step_has_the_grace_of_its_signal_and_is_saved_and_the_last(alarms, number, grace):
    callback = in_a_step()
    callback._note(number, None)
    assert alarms == [grace]
    with pytest.raises(AbortStep):
        callback._out_of_time(int(signal.SIGALRM), None)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_step_end(None, None, control)
    assert control.should_save
    assert control.should_training_stop
    assert callback.name == signal.Signals(number).name


@pytest.mark.parametrize("ignored", [False, True])
def test_a_lost_terminal_is_a_signal_like_sigterm_unless_nohup_ignores_it(alarms, ignored):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    callback = in_a_step()
    try:
        with callback.listening():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert (callback.received, callback.name) == ((None, "no signal") if ignored else (signal.SIGHUP, "SIGHUP"))


@pytest.mark.parametrize("number", [TERM, int(signal.SIGINT), int(signal.SIGALRM)])
@pytest.mark.parametrize("phase", ["update", "last checkpoint"])
def test_no_step_is_aborted_after_a_weight_changed_nor_during_the_final_save(alarms, number, phase):
    callback = in_a_step()

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
    assert alarms == []
    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            callback.on_step_begin(None, None, None)
    else:
        callback.on_step_begin(None, None, None)
        assert alarms == [15], "the next step has the grace period"


def test_outside_of_a_step_a_signal_ends_the_run_at_once(alarms):
    with pytest.raises(AbortStep):
        StopOnSignal()._note(TERM, None)
    callback = in_a_step()
    callback.on_pre_optimizer_step(None, None, None)
    with callback.between_steps(), pytest.raises(AbortStep):
        callback._note(TERM, None)
    assert alarms == []


@pytest.mark.parametrize("number", [TERM, int(signal.SIGINT)])
def test_a_signal_during_a_report_is_reported_at_the_next_collective(number):
    """Of two processes, this one gets the signal after it has reported that it had none."""

    class Late(Processes):
        def all_gather(self, value):
            gathered.append(value)
            if len(gathered) == 1:
                os.kill(os.getpid(), number)
            return [value, (None, False, False)]

    gathered, control = [], SimpleNamespace(should_training_stop=False, should_save=False)
    stop = CollectiveStop(Late(0, 2))
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
