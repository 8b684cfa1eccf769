"""Progress: it only ever grows, and a fit that is asked to end keeps the best it has."""

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp.progress import Listener, listening, span, stopping, tick


def test_progress_of_a_fit_grows_to_the_end(wavy):
    heard = []
    with listening(Listener(lambda share, text: heard.append((share, text)))):
        DSMGPRegressor(max_iter=5, random_state=0).fit(*wavy)
    shares = [share for share, _ in heard]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    texts = dict.fromkeys(text for _, text in heard)
    assert {"trying kernel rbf", "conditioning leaves", "fitting the gate"} <= set(texts)


def test_a_fit_that_is_asked_to_end_keeps_the_best_so_far(wavy):
    X, y = wavy
    listener = Listener()
    calls = []

    def hear(share, text):
        calls.append(share)
        if len(calls) == 12:
            listener.stop()

    listener.hear = hear
    with listening(listener):
        model = DSMGPRegressor(random_state=0).fit(X, y)
    whole = DSMGPRegressor(random_state=0).fit(X, y)
    assert model.n_evaluations_ < 0.5 * whole.n_evaluations_
    assert model.score(X, y) > 0.5
    assert not stopping()


def test_nobody_need_listen_and_spans_nest():
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
