"""Progress never falls, and a fit that is stopped keeps the best result so far."""

import time

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.fitting.structure import grow_tree, large_leaves
from dsmgp.progress import Listener, StageTimes, active_listeners, listening, span, stopping, tick


def test_progress_of_a_fit_grows_to_the_end(wavy):
    heard = []
    with listening(Listener(lambda share, text: heard.append((share, text)))):
        DSMGPRegressor(max_iter=5, random_state=0).fit(*wavy)
    shares = [share for share, _ in heard]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    texts = dict.fromkeys(text for _, text in heard)
    assert {"trying kernel rbf", "conditioning leaves", "fitting the gate"} <= set(texts)


def test_a_fit_that_is_stopped_keeps_the_best_so_far(wavy):
    X, y = wavy
    listener = Listener()
    calls = []

    def hear(share, text):
        calls.append(share)
        if len(calls) == 12:
            listener.stop()

    listener.hear = hear
    with listening(listener):
        model = DSMGPRegressor(hypotheses=None, random_state=0).fit(X, y)
    whole = DSMGPRegressor(hypotheses=None, random_state=0).fit(X, y)
    assert model.n_evaluations_ < 0.5 * whole.n_evaluations_
    assert model.score(X, y) > 0.5
    assert not stopping()


def test_listeners_nest():
    outer, inner = [], []
    with listening(Listener(lambda share, text: outer.append((share, text)))) as first:
        with (
            span(0.5, 1.0, "second half"),
            listening(Listener(lambda *report: inner.append(report))),
        ):
            with span(0.0, 1.0, "a fit"):
                tick(0.5)
            assert not stopping()
            first.stop()
            assert stopping()
        assert active_listeners() == (first,)
    assert inner == [(0.0, "a fit"), (0.5, "a fit"), (1.0, "a fit")]
    assert (0.75, "a fit") in outer
    assert outer[-1] == (1.0, "second half")


def test_verbose_leaves_the_listener_of_the_caller_connected(wavy, monkeypatch):
    monkeypatch.setattr("dsmgp._util.progress_bar.can_draw", lambda: True)
    heard = []
    listener = Listener(lambda *report: heard.append(report))
    listener.stop()
    with listening(listener):
        stopped = DSMGPRegressor("rbf", random_state=0, verbose=True).fit(*wavy)
    assert heard
    whole = DSMGPRegressor("rbf", random_state=0).fit(*wavy)
    assert stopped.n_evaluations_ < 0.5 * whole.n_evaluations_


def test_progress_without_listeners_and_nested_spans():
    tick(0.5)
    heard = []
    with listening(Listener(lambda share, text: heard.append(round(share, 3)))):
        with span(0.0, 0.5, "a"), span(0.5, 1.0, "b"):
            tick(0.5)
        with pytest.raises(ValueError, match="no"), span(0.5, 1.0, "c"):
            raise ValueError("no")
        tick(0.9)
    assert heard[-1] == 0.9
    assert heard == sorted(heard)
    assert np.isin([0.25, 0.375, 0.5], heard).all()


def test_the_times_of_the_stages_are_told(caplog):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(80, 2))
    with caplog.at_level("INFO", logger="dsmgp"):
        model = DSMGPRegressor(max_iter=3, random_state=0).fit(X, np.sin(5 * X[:, 0]))
    times = model.fit_times_
    assert {"trying kernels", "learning hyperparameters", "growing the tree"} <= set(times)
    assert {"conditioning leaves", "fitting the gate"} <= set(times)
    assert all(seconds >= 0 for seconds in times.values())
    assert "conditioning leaves" in next(
        r.message for r in caplog.records if "seconds:" in r.message
    )
    times.clear()
    assert model.fit_times_  # a copy was given


def test_a_stage_does_not_count_the_stages_inside_it(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0])
    monkeypatch.setattr("dsmgp.progress.time.perf_counter", lambda: next(clock))
    with listening(StageTimes()) as times:
        # The outer stage from 1 to 10, the inner one from 3 to 6.
        with span(0, 0.5, "learning", "learning rbf"), span(0, 1, "inside"):
            pass
        with span(0.5, 1, "learning", "learning matern12"):  # from 15 to 21
            pass
    assert times.seconds == {"learning": 2.0 + 4.0 + 6.0, "inside": 3.0}


def test_learning_for_large_leaves_is_a_stage_of_its_own(monkeypatch):
    """It takes far longer than growing the tree, which it is part of."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(800, 2))
    grow, seconds = large_leaves.learn_large, []

    def timed(*arguments):
        start = time.perf_counter()
        found = grow(*arguments)
        seconds.append(time.perf_counter() - start)
        return found

    monkeypatch.setattr(grow_tree, "learn_large", timed)
    model = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, np.sin(5 * X[:, 0]))
    (alone,) = seconds
    times = model.fit_times_
    assert times["learning hyperparameters of large leaves"] >= alone
    assert times["growing the tree"] < alone
