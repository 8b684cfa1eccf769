"""Tables of hyperparameters, one row per leaf."""

import sys
import threading

import numpy as np
import pytest

from dsmgp.gp.leaf_parameters import LeafParameters
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
    pytest.importorskip("torch")
    from gpytorch.kernels import RBFKernel

    thetas = LeafParameters([build_process(RBFKernel(), "zero", 0.1, 2)], np.zeros(3, dtype=int))

    def evaluate():
        return np.hstack([table.ravel() for table in getattr(thetas, name)(np.arange(3), theta)])

    theta, at = thetas.start(), 1
    expected = evaluate()
    while interrupted(evaluate, "_functorch/vmap.py", at):
        np.testing.assert_array_equal(evaluate(), expected)
        at += 1


def test_each_leaf_is_evaluated_by_the_process_of_its_family(rng):
    processes = [build_process(kernel, "linear", 0.1, 2) for kernel in ("rbf", "matern32")]
    family = np.array([1, 0, 0, 1, 1])
    thetas = LeafParameters(processes, family)
    assert thetas.start().shape == (5, len(thetas.names))
    leaf = np.array([4, 0, 2, 2])
    table = thetas.start()[leaf] + 0.5 * rng.normal(size=(4, len(thetas.names)))
    parameters = thetas.kernel_parameters(leaf, table)
    weights = rng.normal(size=parameters.shape)
    back = thetas.pull_back(leaf, table, weights)
    noise, log_prior = thetas.noise(leaf, table), thetas.log_prior(leaf, table)
    for k, number in enumerate(leaf):
        process = processes[family[number]]
        np.testing.assert_allclose(parameters[k], process.kernel_parameters(table[k]), rtol=1e-14)
        np.testing.assert_allclose(back[k], process.pull_back(table[k], weights[k]), rtol=1e-14)
        for found, expected in (
            (noise, process.noise_and_gradient(table[k])),
            (log_prior, process.log_prior(table[k])),
        ):
            for got, wanted in zip(found, expected, strict=True):
                np.testing.assert_allclose(got[k], wanted, rtol=1e-12)
    names = np.array(thetas.names)
    assert thetas.has_prior(np.flatnonzero(names == "lengthscale"))
    assert not thetas.has_prior(np.flatnonzero(names == "noise"))


def test_families_with_different_parameters_are_refused():
    processes = [build_process(kernel, "zero", 0.1, 2) for kernel in ("rbf", "rq")]
    with pytest.raises(ValueError, match="kernels of different parameters"):
        LeafParameters(processes, np.array([0, 1]))


def test_uninterrupted_work_runs_outside_of_the_main_thread_and_passes_errors_on():
    main = threading.main_thread()
    assert uninterrupted(threading.current_thread) is not main
    inner = uninterrupted(lambda: uninterrupted(threading.current_thread))
    assert inner is not main
    with pytest.raises(ValueError, match="a fault"):
        uninterrupted(lambda: (_ for _ in ()).throw(ValueError("a fault")))
