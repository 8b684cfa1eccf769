"""Rounding stays under the bounds that docs/numerics.md states, on matrices that are hard, in all backends and precisions."""

import functools

import numpy as np
import pytest

from dsmgp import DSMGPRegressor
from dsmgp._util.warnings import FactorisationWarning
from dsmgp.experts.backends.numba_backend import KINDS, NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend
from dsmgp.gp.process import SINGLE_NOISE_FLOOR
from tests.support import fifty_digits, oracle
from tests.support.hard_kernels import hard_kernels, residuals

# In units of the order of the matrix times the precision (Higham 2002, theorem 10.3, has n + 1 of them).
MOST_FACTOR, MOST_SOLVE = 2.0, 4.0
EPS = np.finfo(np.float64).eps
N_LEAVES = 250  # of each of four kernels
ENGINES = ("numba", "numpy", "torch", "single")


def dtype_of(backend):
    return "float32" if backend == "single" else "float64"


def backend_of(name):
    if name == "numba":
        pytest.importorskip(
            "dsmgp.experts.backends.numba_leaves", reason="needs numba", exc_type=ImportError
        )
        return NumbaBackend
    if name == "numpy":
        return NumpyBackend
    pytest.importorskip("torch")
    from dsmgp.experts.backends.torch_backend import TorchBackend

    return functools.partial(TorchBackend, dtype=dtype_of(name))


def exact(kind):
    return lambda X, kernel_parameters: oracle.kernel(
        kind, kernel_parameters[:-2], kernel_parameters[-2]
    )(X, X)


@functools.cache
def measured(kind, backend, n_leaves=N_LEAVES, most_rows=80, seed=1):
    hard = hard_kernels(kind, n_leaves, seed, most_rows)
    return hard, residuals(hard, backend_of(backend), exact(kind), dtype_of(backend))


def most_matrix_error(kind, backend, reach):
    """What a covariance may be wrong by, over the output scale; ``reach`` is how many length-scales rows are apart.

    Rounding the inputs alone moves it by the precision times the reach. Distances by products lose more, and kernels in
    the distance itself the square root of what is lost.
    """
    if backend in ("numba", "numpy"):
        return 4 * EPS * (1 + reach)
    eps = np.finfo(dtype_of(backend)).eps
    lost = 0.4 * eps**0.45 if kind == "matern12" else 0.0
    return np.maximum(400 * eps * (1 + reach), lost)


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_factors_and_solutions_have_small_residuals_however_hard_the_matrix(kind, backend):
    _, found = measured(kind, backend)
    assert np.isfinite(found.log_evidence).all()
    assert found.factor.max() < MOST_FACTOR
    assert found.solve.max() < MOST_SOLVE
    assert (found.added > 0).any(), "hard enough that some need jitter"
    most = 1.1e-2 if backend == "single" else 1.1e-11
    assert found.added.max() < most


@pytest.mark.parametrize("backend", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_covariances_are_as_exact_as_their_inputs_allow(kind, backend):
    _, found = measured(kind, backend)
    assert (found.matrix <= most_matrix_error(kind, backend, found.reach)).all()


@pytest.mark.parametrize("backend", ["numba", "numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_evidence_is_that_of_fifty_digits(kind, backend):
    """Up to what an error in the covariances makes of it, which the condition number magnifies."""
    hard, found = measured(kind, backend, n_leaves=40, most_rows=12, seed=7)
    for k, rows in enumerate(hard.rows):
        kernel_parameters, n = hard.kernel_parameters[k], len(rows)
        added = found.added[k] * kernel_parameters[-2:].sum() / (1 - found.added[k])
        expected, fit = fifty_digits.log_evidence(
            kind, hard.X[rows], hard.y[rows], kernel_parameters, added
        )
        nugget = kernel_parameters[-1] + added
        condition = (n * kernel_parameters[-2] + nugget) / nugget
        wrong = n * EPS + most_matrix_error(kind, backend, found.reach[k])
        most = n * condition * (n + fit) * wrong
        assert abs(found.log_evidence[k] - expected) <= 1e-12 * abs(expected) + most


@pytest.mark.parametrize("kind", KINDS)
def test_the_evidence_of_a_usual_leaf_has_twelve_digits(kind, rng):
    X, y = rng.normal(size=(10, 2)), rng.normal(size=10)
    kernel_parameters = np.array([0.8, 1.3, 1.7, 0.1])
    kernel = oracle.kernel(kind, kernel_parameters[:2], kernel_parameters[2])
    K = kernel(X, X) + kernel_parameters[3] * np.eye(10)
    expected, _ = fifty_digits.log_evidence(kind, X, y, kernel_parameters)
    dense = -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1] + 10 * np.log(2 * np.pi))
    assert dense == pytest.approx(expected, rel=1e-12)


# What single precision may be wrong by against double, in predictive standard deviations, by the noise variance.
MOST_SINGLE = {1e-1: 0.01, 1e-2: 0.01, 1e-3: 0.05, SINGLE_NOISE_FLOOR: 0.3}


@pytest.mark.parametrize("noise", MOST_SINGLE)
@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_is_wrong_by_a_small_part_of_a_standard_deviation(kind, noise):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X, new = rng.uniform(-2, 2, size=(300, 2)), rng.uniform(-2, 2, size=(200, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + np.sqrt(noise) * rng.normal(size=300)
    options = {"kernel": kind, "noise_variance": noise, "optimizer": None, "random_state": 0}
    options |= {"leaf_size": [100, 300], "sum_children": 2}
    mean, std = DSMGPRegressor(**options).fit(X, y).predict(new, return_std=True)
    single = DSMGPRegressor(**options, dtype="float32").fit(X, y)
    single_mean, single_std = single.predict(new, return_std=True)
    assert np.abs((single_mean - mean) / std).max() < MOST_SINGLE[noise]
    assert np.abs(single_std / std - 1).max() < MOST_SINGLE[noise]


def test_noise_that_is_learned_in_single_precision_stays_where_that_can_be_trusted(rng):
    pytest.importorskip("torch")
    X = rng.uniform(-2, 2, size=(200, 1))
    y = np.sin(2 * X[:, 0])  # no noise at all
    single = DSMGPRegressor("rbf", dtype="float32", random_state=0).fit(X, y)
    double = DSMGPRegressor("rbf", random_state=0).fit(X, y)
    assert single.noise_ >= SINGLE_NOISE_FLOOR > 10 * double.noise_


# Nothing that is not a number leaves the library


def needs_torch(dtype):
    if dtype == "float32":
        pytest.importorskip("torch")


@pytest.mark.parametrize("kernel", ["rbf", "periodic", "rbf+matern52"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_however_far_are_answered_by_numbers(kernel, dtype, wavy):
    needs_torch(dtype)
    X, y = wavy
    model = DSMGPRegressor(kernel, "linear", leaf_size=40, max_iter=3, dtype=dtype, random_state=0)
    model.fit(X, y)
    reach = 1e149 if dtype == "float64" else 1e11
    new = np.concatenate([X[:2] * s for s in (0.0, 1.0, -1e8, reach, -reach)])
    mean, std = model.predict(new, return_std=True)
    _, covariance = model.predict(new[:6], return_cov=True)
    leaf_kernel = model.predict_dist(new)
    for part in (
        mean,
        std,
        covariance,
        leaf_kernel.quantile(0.9),
        leaf_kernel.logpdf(0.0),
        model.noise_at(new),
    ):
        assert np.isfinite(part).all()
    assert np.isfinite(model.sample_y(new[:6], 3)).all()


@pytest.mark.parametrize("kernel", ["rbf", "periodic", "rbf+matern52"])
def test_rows_out_of_the_range_of_their_precision_are_refused(kernel, wavy):
    """Their squares would be infinite, and differences of them no numbers."""
    X, y = wavy
    tiny = DSMGPRegressor(kernel, max_iter=2, random_state=0).fit(1e-20 * X, y)
    with pytest.raises(ValueError, match="row 0 of X lies more than 1e\\+150 units away"):
        tiny.predict(np.full((1, 2), 1e140))


@pytest.mark.parametrize("kernel", ["rbf", "periodic", "rbf+matern52"])
def test_rows_out_of_the_range_of_single_precision_are_refused(kernel, wavy):
    needs_torch("float32")
    X, y = wavy
    single = DSMGPRegressor(kernel, max_iter=2, dtype="float32", random_state=0).fit(X, y)
    for reach in (1e15, 1e30, 1e100):
        with pytest.raises(ValueError, match=r"row 1 of X .* single precision.*float64"):
            single.predict(X[:2] * [[1.0], [reach]])
    with pytest.raises(ValueError, match=r"row 0 of X .* single precision"):
        single.partial_fit(X[:1] * 1e20, y[:1])
    with pytest.raises(ValueError, match=r"row 0 of y .* single precision"):
        single.partial_fit(X[:1], y[:1] + 1e20)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("exponent", [-140, -60, -30, -15, 15, 30, 60, 140])
def test_outputs_of_any_size_that_are_not_standardised_are_learned_or_refused(
    exponent, dtype, wavy
):
    """GPyTorch has bounds in single precision, and so may leaves: to the first no noise was enough, the others never came to an end."""
    needs_torch(dtype)
    X, y = wavy
    model = DSMGPRegressor("rbf", standardize=False, dtype=dtype, max_iter=10, random_state=0)
    unit = 10.0**exponent
    if dtype == "float32" and abs(exponent) > 15:
        with pytest.raises(ValueError, match=r"single precision.*float64"):
            model.fit(X, unit * y)
        return
    if dtype == "float32" and exponent == 15:
        unit = 1e11
    mean, std = model.fit(X, unit * y).predict(X, return_std=True)
    assert np.abs(mean / unit - y).max() < 0.5
    assert (std / unit > 0.05).all()
    assert (std / unit < 0.5).all()


def test_a_kernel_that_gives_no_numbers_is_refused(wavy):
    gpytorch = pytest.importorskip("gpytorch")

    class Broken(gpytorch.kernels.RBFKernel):
        """Sound where it is tried, and no number where it counts."""

        def forward(self, x1, x2, diag=False, **params):
            found = super().forward(x1, x2, diag=diag, **params)
            return found if x1.shape[-2] <= 2 else found * float("nan")

    model = DSMGPRegressor(Broken(), max_iter=2)
    with pytest.raises(ValueError, match="could not be factorised"):
        model.fit(*wavy)
    assert not hasattr(model, "tree_")


@pytest.mark.filterwarnings("ignore::dsmgp._util.warnings.FactorisationWarning")
def test_a_matrix_that_nothing_helps_is_refused_in_words(wavy):
    """Covariances that are no covariances: their negative is."""
    gpytorch = pytest.importorskip("gpytorch")

    class Negative(gpytorch.kernels.RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            return -super().forward(x1, x2, diag=diag, **params)

    with pytest.raises(ValueError, match="could not be factorised even with added noise"):
        DSMGPRegressor(Negative(), optimizer=None, noise_variance=1e-6).fit(*wavy)
    assert issubclass(FactorisationWarning, UserWarning)
