"""Tables of hyperparameters, one row per leaf."""

import sys
import threading

import numpy as np
import pytest

from dsmgp.gp.leaf_parameters import Thetas
from dsmgp.gp.process import build_process
from dsmgp.linalg.threads import uninterrupted


def interrupted(call, file, at):
    """Raise KeyboardInterrupt before the line ``at`` that the main thread runs in a file; whether it ran that many."""
    n_lines, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal n_lines
        if not frame.f_code.co_filename.endswith(file):
            return None
        if event == "line":
            n_lines += 1
            if n_lines == at:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("name", ["kernel_parameters", "noise", "log_prior"])
def test_after_an_interrupt_at_any_line_of_vmap_tables_are_evaluated_as_before(name):
    """An interrupt inside vmap would leave its stack of levels wrong."""
    thetas = Thetas([build_process("rbf", "zero", 0.1, 2)], np.zeros(3, dtype=int), 2)

    def evaluate():
        return np.hstack([table.ravel() for table in getattr(thetas, name)(np.arange(3), theta)])

    theta, at = thetas.start(), 1
    expected = evaluate()
    while interrupted(evaluate, "_functorch/vmap.py", at):
        np.testing.assert_array_equal(evaluate(), expected)
        at += 1


def test_uninterrupted_work_runs_outside_of_the_main_thread_and_passes_errors_on():
    main = threading.main_thread()
    assert uninterrupted(threading.current_thread) is not main
    inner = uninterrupted(lambda: uninterrupted(threading.current_thread))
    assert inner is not main
    with pytest.raises(ValueError, match="a fault"):
        uninterrupted(lambda: (_ for _ in ()).throw(ValueError("a fault")))
