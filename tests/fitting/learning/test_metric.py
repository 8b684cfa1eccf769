"""A linear map of the inputs learned by the evidence of leaves."""

import numpy as np
import pytest

from dsmgp._util.ragged import Ragged
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import is_stationary, learn_family
from dsmgp.fitting.learning.metric import learn_metric
from dsmgp.gp.metric_process import metric_process
from dsmgp.gp.process import Family, build_process

N, D = 400, 4
W = np.array([1.0, -2.0, 0.5, 1.0]) / 2.5  # of length one


def problem(rng, functions, kernel="matern52", **settings):
    """Leaf GPs on functions of the inputs, and a family that was learned on them."""
    X = rng.normal(size=(N, D))
    Y = np.column_stack([f(X) for f in functions]) + 0.05 * rng.normal(size=(N, len(functions)))
    Y = (Y - Y.mean(axis=0)) / Y.std(axis=0)
    family = Family(kernel, tuple(build_process(kernel, "constant", None, D) for _ in functions))
    leaves = Ragged.of(list(np.arange(N).reshape(4, -1)))
    gps = InMemoryLeafGPs(leaves, LeafData(X, Y), family.leaf_kernels)
    context = FitContext(FitConfig(**settings), np.random.default_rng(0))
    return gps, learn_family(gps, family, context)[0], context


def ridge(X):
    return np.sin(2.0 * X @ W)


@pytest.mark.parametrize("rank", [1, 2, D])
def test_the_direction_of_a_ridge_function_is_found(rng, rank):
    gps, family, context = problem(rng, [ridge])
    A = learn_metric(gps, family, context, rank=rank)
    assert A.shape == (D, rank)
    assert context.evaluations.n > 1
    lengths = np.linalg.norm(A, axis=0)
    assert abs(W @ A[:, 0]) / lengths[0] > 0.999
    assert (lengths[1:] < 0.1 * lengths[0]).all()


def test_the_evidence_is_higher_than_with_length_scales(rng):
    gps, family, context = problem(rng, [ridge], local_scale=False)
    ard = gps.log_evidence(family.kernel_parameters).sum()
    metric = Family("matern52", (metric_process(family.processes[0], D),))
    assert is_stationary(metric)
    mapped = gps.with_kernels(metric.leaf_kernels)
    assert mapped.log_evidence(metric.kernel_parameters).sum() == pytest.approx(ard, rel=1e-10)
    learned, _ = learn_family(gps, metric, context)
    assert mapped.log_evidence(learned.kernel_parameters).sum() > ard + 50.0


def test_outputs_share_the_average_of_their_squared_maps(rng):
    other = np.array([2.0, 1.0, 0.0, 0.0]) / np.sqrt(5.0)  # orthogonal to W
    functions = [ridge, lambda X: np.sin(2.0 * X @ other)]
    gps, family, context = problem(rng, functions)
    A = learn_metric(gps, family, context, rank=2)
    plane = np.column_stack([W, other])
    inside = plane @ (plane.T @ A)
    assert np.linalg.norm(A - inside) < 0.05 * np.linalg.norm(A)
    squares = []
    for k, process in enumerate(family.processes):
        alone = InMemoryLeafGPs(
            gps.leaf_rows, LeafData(gps.data.X, gps.data.Y[:, [k]]), [process.leaf_kernel]
        )
        one = learn_metric(alone, Family("matern52", (process,)), context, rank=2)
        squares.append(one @ one.T)
    values = np.linalg.eigvalsh(np.mean(squares, axis=0))[::-1]
    np.testing.assert_allclose(np.linalg.norm(A, axis=0) ** 2, values[:2], rtol=1e-6)


def test_evaluations_are_recorded_and_limited(rng):
    gps, family, context = problem(rng, [ridge])
    recorded = []

    def record(objective):
        def wrapped(theta):
            recorded.append(theta)
            return objective(theta)

        return wrapped

    context = FitContext(context.config, context.rng, record)
    learn_metric(gps, family, context, rank=2, max_iter=3)
    assert len(recorded) == context.evaluations.n <= 10


def test_kernels_without_length_scales_are_refused(rng):
    gps, family, context = problem(rng, [ridge], "rq")
    with pytest.raises(ValueError, match="expected one kernel of rbf"):
        learn_metric(gps, family, context, rank=2)
