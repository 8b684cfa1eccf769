"""Kernels in closed form: values by scikit-learn and textbook formulas, gradients by finite differences; kernels with their values."""

import numpy as np
import pytest

from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.leaf_kernels import StationaryKernel, SumKernel
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import NAMED_KERNELS, Term, kernel_parts
from tests.support import oracle, sklearn_kernels
from tests.support.finite_differences import central_difference

SUMS = ("matern32+periodic", "rq+rbf", "matern12+matern52+periodic")
PRODUCTS = (
    "rbf*periodic",
    "linear*periodic+rq*matern32",
    "linear*linear",
    "matern12*rq[1]+linear[2,0]",
)
KERNELS = [*NAMED_KERNELS, *SUMS, *PRODUCTS]


def moved(kernel, mean, rng, n_dims=3):
    """A process away from where learning starts, with a value of its own for every hyperparameter."""
    spread = np.array([1.0, 2.0, 0.5])[:n_dims]
    process = build_process(kernel, mean, 0.1, n_dims, spread=spread, variance=1.7)
    return process.with_theta(process.theta + 0.3 * rng.normal(size=len(process.theta)))


def rows_with_duplicates(rng, n=14):
    X = rng.normal(size=(n, 3))
    X[3] = X[4]
    X[5] = X[6] + 1e-13
    return X


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_are_those_of_scikit_learn(rng, name):
    process = moved(name, "zero", rng)
    bound = process.leaf_kernel.at(process.kernel_parameters())
    A, B = rows_with_duplicates(rng), rng.normal(size=(5, 3))
    expected = sklearn_kernels.covariance(process.kernel, A, B)
    for found in (bound.cross(A, B), process.kernel(A, B)):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    K, _ = bound.covariance(A)
    expected = sklearn_kernels.covariance(process.kernel, A, A)
    for found in (K, process.kernel(A)):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(bound.variance(A), K.diagonal(), rtol=1e-14)
    assert bound.noise == process.noise


@pytest.mark.parametrize("name", NAMED_KERNELS)
def test_covariances_are_their_textbook_formulas(rng, name):
    process = moved(name, "zero", rng)
    (term,) = process.kernel.terms
    options = {"alpha": term.alpha} if name == "rq" else {}
    if name == "periodic":
        options = {"period": term.period}
    A, B = rng.normal(size=(9, 3)), rng.normal(size=(5, 3))
    expected = oracle.kernel(name, term.lengthscale, term.outputscale, **options)(A, B)
    np.testing.assert_allclose(process.kernel(A, B), expected, rtol=1e-12)


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_equal_finite_differences(rng, name, mean):
    process = moved(name, mean, rng)
    X = rows_with_duplicates(rng)
    W, by_mean, tr_W = rng.normal(size=(len(X), len(X))), rng.normal(size=len(X)), 2.3
    W = W + W.T

    def value(parameters):
        bound = process.leaf_kernel.at(parameters)
        K, _ = bound.covariance(X)
        return 0.5 * np.vdot(W, K) + by_mean @ bound.mean(X) + 0.5 * tr_W * bound.noise

    parameters = process.kernel_parameters()
    _, pullback = process.leaf_kernel.at(parameters).covariance(X)
    expected = central_difference(value, parameters)
    found = pullback(W, by_mean, tr_W)
    assert np.abs(found - expected).max() <= 1e-8 * np.abs(expected).max()


@pytest.mark.parametrize("kind", NAMED_KERNELS)
def test_a_kernel_of_some_inputs_does_not_see_the_others(rng, kind):
    X, W = rng.normal(size=(8, 3)), rng.normal(size=(8, 8))
    some, all_of_them = Term(kind, (0, 2)), Term(kind, (0, 1))
    parameters = rng.uniform(0.5, 2.0, size=some.n_parameters)
    few = X[:, [0, 2]]
    np.testing.assert_array_equal(
        some.covariance(X, X, parameters), all_of_them.covariance(few, few, parameters)
    )
    np.testing.assert_array_equal(
        some.with_gradient(X, parameters)[1](W + W.T),
        all_of_them.with_gradient(few, parameters)[1](W + W.T),
    )


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_distances_of_rows_that_almost_coincide_are_exact(rng, offset):
    a = rng.normal(size=(20, 3)) + offset
    b = a + 1e-9
    r = np.linalg.norm(a[:, None] - b[None], axis=-1)
    K = Kernel((KernelTerm("matern12", [1.0, 1.0, 1.0], 1.0),))(a, b)
    np.testing.assert_allclose(-np.log(K), r, rtol=1e-6, atol=1e-15)


def test_means_are_linear_in_the_inputs(rng):
    X = rng.normal(size=(6, 3))
    for mean, parameters, expected in (
        ("zero", [], np.zeros(6)),
        ("constant", [0.4], np.full(6, 0.4)),
        ("linear", [1.0, -2.0, 0.5, 3.0], X @ [1.0, -2.0, 0.5] + 3.0),
    ):
        kernel = StationaryKernel("rbf", (0, 1, 2), mean)
        bound = kernel.at(np.array([1.0, 1.0, 1.0, 1.0, *parameters, 0.1]))
        np.testing.assert_allclose(bound.mean(X), expected, rtol=1e-14)


def test_leaf_kernels_with_the_same_structure_are_equal_and_say_where_output_scales_stand():
    one, same = (StationaryKernel("rq", (0, 1), "zero") for _ in range(2))
    assert {one: 1}[same] == 1
    assert one.output_scales == [2]
    terms = (Term("rq", (0, 1)), Term("periodic", (0, 1)), Term("rbf", (0, 1)))
    assert SumKernel(terms, "constant").output_scales == [2, 6, 11]
    assert SumKernel(terms, "constant") != SumKernel(terms, "zero")


def test_a_sum_names_its_parts_and_unknown_parts_are_refused():
    assert kernel_parts("matern32 + periodic") == ["matern32", "periodic"]
    with pytest.raises(ValueError, match=r"unknown kernel 'gauss'.*'matern32\+periodic'"):
        kernel_parts("rbf+gauss")


# Kernels with their values


def test_a_kernel_is_written_with_its_values():
    rbf = KernelTerm("rbf", [0.5, 2.0], 1.5)
    rq = KernelTerm("rq", 0.123456, 2.0, alpha=0.7)
    periodic = KernelTerm("periodic", [1.0], 0.25, period=[3.14159265])
    assert repr(Kernel((rbf,))) == "rbf(lengthscale=[0.5, 2. ], outputscale=1.5)"
    assert repr(Kernel((rq, periodic))) == (
        "rq(lengthscale=[0.1235], outputscale=2, alpha=0.7) + "
        "periodic(lengthscale=[1.], outputscale=0.25, period=[3.1416])"
    )


def test_a_kernel_has_a_name_and_values_that_cannot_be_changed():
    one = Kernel((KernelTerm("matern32", [0.5, 2.0], 1.5),))
    assert (one.name, one.n_dims, one.outputscale) == ("matern32", 2, 1.5)
    np.testing.assert_array_equal(one.lengthscale, [0.5, 2.0])
    with pytest.raises(ValueError, match="read-only"):
        one.lengthscale[0] = 1.0
    both = Kernel((*one.terms, KernelTerm("rbf", [1.0, 1.0], 0.5)))
    assert (both.name, both.outputscale) == ("matern32+rbf", 2.0)
    with pytest.raises(AttributeError, match=r"matern32\+rbf has several terms.*see terms"):
        both.lengthscale  # noqa: B018
    assert not hasattr(both, "lengthscale")


def test_a_kernel_takes_lists_and_one_row():
    kernel = Kernel((KernelTerm("rbf", [0.5, 2.0], 1.5),))
    np.testing.assert_array_equal(kernel([0.0, 1.0]), [[1.5]])
    np.testing.assert_array_equal(kernel([[0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]), [[1.5, 1.5]])


def test_rows_with_another_number_of_inputs_are_refused():
    kernel = Kernel((KernelTerm("rbf", [0.5, 2.0], 1.5),))
    for columns in (1, 3):
        with pytest.raises(ValueError, match=f"2 columns.*got {columns}"):
            kernel(np.zeros((4, columns)))
        with pytest.raises(ValueError, match=f"2 columns.*got {columns}"):
            kernel(np.zeros((4, 2)), np.zeros((4, columns)))
        with pytest.raises(ValueError, match=f"inputs with {columns} columns: it has 2 length"):
            build_process(kernel, "zero", 0.1, columns)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_with_values_is_where_learning_starts(rng, name):
    process = moved(name, "zero", rng)
    # Whatever the spread of the inputs and the periods of the output.
    again = build_process(process.kernel, "zero", process.noise, 3, periods=np.full(3, 7.0))
    np.testing.assert_allclose(again.kernel_parameters(), process.kernel_parameters(), rtol=1e-12)
    assert again.leaf_kernel == process.leaf_kernel
    assert again.kernel.name == name


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_as_a_gpytorch_module_has_the_same_covariances(rng, name):
    torch = pytest.importorskip("torch")
    kernel = moved(name, "zero", rng).kernel
    A, B = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    with torch.no_grad():
        found = kernel.to_gpytorch()(torch.from_numpy(A), torch.from_numpy(B)).to_dense().numpy()
    np.testing.assert_allclose(found, kernel(A, B), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KernelTerm("gauss", [1.0], 1.0), "unknown kernel 'gauss'"),
        (lambda: KernelTerm("rq", [1.0], 1.0), "alpha belongs to the kernel 'rq'"),
        (lambda: KernelTerm("rbf", [1.0], 1.0, alpha=1.0), "alpha belongs to the kernel 'rq'"),
        (lambda: KernelTerm("periodic", [1.0], 1.0), "period belongs to the kernel 'periodic'"),
        (
            lambda: KernelTerm("periodic", [1.0, 2.0], 1.0, period=[1.0]),
            "a period for each length scale",
        ),
        (lambda: Kernel(()), "the same number of length scales"),
        (
            lambda: Kernel((KernelTerm("rbf", [1.0], 1.0), KernelTerm("rbf", [1.0, 2.0], 1.0))),
            "the same number of length scales",
        ),
    ],
)
def test_kernels_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("lengthscale", "outputscale"), [(-1.0, 1.0), (np.nan, 1.0), (1.0, 0.0)])
def test_a_fit_refuses_kernels_whose_hyperparameters_are_not_positive(lengthscale, outputscale):
    kernel = Kernel((KernelTerm("rbf", [lengthscale], outputscale),))
    with pytest.raises(ValueError, match="positive hyperparameters"):
        build_process(kernel, "zero", 0.1, 1)


def test_kernels_with_equal_values_are_equal():
    one, other = (Kernel((KernelTerm("rbf", [0.5, 2.0], 1.0),)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Kernel((KernelTerm("rbf", [0.5, 2.1], 1.0),))
    assert one != Kernel((KernelTerm("matern12", [0.5, 2.0], 1.0),))
