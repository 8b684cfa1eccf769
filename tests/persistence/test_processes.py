"""Named processes in a file: a short description and theta come back as they were, and errors name the field."""

import copy
import json

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, ModelFileError
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.leaf_kernels import MEANS
from dsmgp.gp.process import Family, build_process
from dsmgp.gp.terms import NAMED_KERNELS, STATIONARY
from dsmgp.persistence.parameters import read_parameters, write_parameters
from dsmgp.persistence.processes import FAMILIES, read_families
from dsmgp.persistence.record import Section
from tests.support.damage import change_entry

KERNELS = [
    *NAMED_KERNELS,
    "matern32+periodic",
    "rq+rbf",
    "rbf*periodic",
    "linear*rq[2]+matern12[0,1]",
]


def process_of(kernel, mean="zero", n_dims=3, seed=0):
    built = build_process(kernel, mean, 0.05, n_dims, spread=np.arange(1.0, n_dims + 1))
    rng = np.random.default_rng(seed)
    return built.with_theta(built.theta + 0.3 * rng.normal(size=len(built.theta)))


def stored(*processes, n_dims=3):
    """A section that holds one family, as a file would after it was written and read."""
    section = Section()
    FAMILIES.write([Family("given", tuple(processes))], section)
    section.header = json.loads(json.dumps(section.header))
    section.sizes |= {"coordinates": n_dims, "outputs": len(processes)}
    return section


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mean", MEANS)
def test_a_named_process_comes_back_as_it_was(kernel, mean):
    process = process_of(kernel, mean)
    (family,) = read_families(stored(process, process_of(kernel, mean, seed=1)))
    again = family.processes[0]
    assert again.leaf_kernel == process.leaf_kernel
    assert again.names == process.names
    np.testing.assert_array_equal(again.theta, process.theta)
    np.testing.assert_array_equal(again.kernel_parameters(), process.kernel_parameters())
    theta = process.theta + 0.1
    for ours, theirs in zip(again.log_prior(theta), process.log_prior(theta), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert again.rescaled(1e-9).noise == process.rescaled(1e-9).noise  # the floor
    assert not np.array_equal(family.processes[1].theta, again.theta)


def test_the_header_can_be_read_by_people():
    section = stored(process_of("rq", n_dims=2), n_dims=2)
    (process,) = section.header["families"][0]["processes"]
    assert (process["kind"], process["mean"]) == ("named", "zero")
    assert process["terms"] == [{"kernel": "rq", "columns": [0, 1]}]
    names = [(block["name"], block["transform"]) for block in process["parameters"]]
    assert names == [
        ("outputscale", "exp"),
        ("lengthscale", "exp"),
        ("alpha", "softplus"),
        ("noise", "exp"),
    ]
    assert process["parameters"][1]["log_normal_prior"].keys() == {"loc", "scale"}
    assert list(section.arrays) == ["family.0.0.theta"]


def entry(*keys, value):
    def change(process, arrays):
        home = process
        for key in keys[:-1]:
            home = home[key]
        home[keys[-1]] = value

    return change


def theta(value):
    return lambda process, arrays: arrays.update({"family.0.0.theta": np.array(value)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (entry("kind", value="pickle"), r"processes\.0\.kind' is 'pickle', expected one of 'named', 'gpytorch'"),
        (entry("mean", value="wavy"), r"processes\.0\.mean' is 'wavy', expected one of 'zero'"),
        (entry("terms", value=[]), "kernels or means: there are none"),
        (entry("terms", 0, "kernel", value="rbf"), r"expected the parameters .*'lengthscale', 2, 'exp'"),
        (entry("terms", 0, "kernel", value="eval"), r"terms\.0\.kernel' is 'eval'"),
        (entry("terms", 0, "columns", value=[0]), "expected the parameters .*'lengthscale', 1, 'exp'"),
        (entry("terms", 0, "columns", value=[1, 1]), "invalid columns of kernels"),
        (entry("terms", 0, "columns", value=[]), "invalid columns of kernels"),
        (entry("terms", 0, "columns", value=[0, 7]), "expected distinct numbers below 2"),
        (entry("parameters", value=[]), "expected the parameters"),
        (entry("parameters", 1, "name", value="width"), "expected the parameters"),
        (entry("parameters", 1, "size", value=3), "invalid priors"),
        (entry("parameters", 2, "size", value=3), "expected the parameters"),
        (entry("parameters", 1, "size", value=10**30), r"parameters\.1\.size' is 1000"),
        (entry("parameters", 1, "transform", value="identity"), "invalid priors"),
        (entry("parameters", 2, "transform", value="exp"), "expected the parameters"),
        (entry("parameters", 1, "lower", value=0.5), "another lower bound"),
        (entry("parameters", 3, "lower", value=-0.5), "another lower bound"),
        (entry("parameters", 3, "lower", value="low"), r"parameters\.3\.lower' is 'low'"),
        (entry("parameters", 0, "log_normal_prior", value={}), r"lacks 'families\.0\.processes\.0\.parameters\.0\.log_normal_prior\.loc'"),
        (entry("parameters", 0, "log_normal_prior", "scale", value=0.0), r"scale' is 0\.0, expected a number in \[1e-09, 1e\+09\]"),
        (entry("parameters", 1, "log_normal_prior", "loc", value=[1.0, 2.0, 3.0]), "invalid priors"),
        (theta(np.zeros(4)), "theta has 4 entries"),
        (theta(np.full(5, np.nan)), "not finite"),
        (theta([0.0, 800.0, 0.0, 0.0, 0.0]), "not finite"),
        (theta([0.0, -800.0, 0.0, 0.0, 0.0]), "not positive"),
        (lambda process, arrays: arrays.clear(), r"lacks the array 'family\.0\.0\.theta'"),
    ],
)  # fmt: skip
def test_errors_name_the_field(change, message):
    section = stored(process_of("rq", n_dims=2), n_dims=2)
    change(section.header["families"][0]["processes"][0], section.arrays)
    with pytest.raises(ModelFileError, match=message):
        read_families(section)


def tied_process():
    built = build_process("rq", "constant", 0.05, 4, ties=(0, 1, 1, 1))
    return built.with_theta(built.theta + np.linspace(0, 1, len(built.theta)))


def test_ties_of_length_scales_come_back(rng):
    process = tied_process()
    (family,) = read_families(stored(process, n_dims=4))
    (again,) = family.processes
    assert again.ties == (0, 1, 1, 1)
    np.testing.assert_array_equal(again.kernel_parameters(), process.kernel_parameters())
    gradient = rng.normal(size=len(process.kernel_parameters()))
    np.testing.assert_array_equal(
        again.pull_back(again.theta, gradient), process.pull_back(process.theta, gradient)
    )


@pytest.mark.parametrize(
    ("ties", "message"),
    [
        ([0, 1, 1], "invalid ties"),
        ([0, 2, 2, 2], "invalid ties"),
        ([0, 1, 2, 3], "invalid ties"),
        ([0, 1, 2, 2], "expected the parameters"),
        (None, "expected the parameters"),
        ([0, 1, 1, -1], r"ties"),
        ("0111", r"ties"),
        ([0, 1, 1, 10**30], r"ties"),
    ],
)
def test_broken_ties_are_refused(ties, message):
    section = stored(tied_process(), n_dims=4)
    section.header["families"][0]["processes"][0]["ties"] = ties
    with pytest.raises(ModelFileError, match=message):
        read_families(section)


@pytest.mark.parametrize("n", [300, pytest.param(30_000, marks=pytest.mark.slow)])
def test_descriptions_that_were_made_up_are_refused_or_make_a_process(rng, n):
    """What is read is whole: every method of a process works."""
    sections = [stored(process_of(kernel, mean)) for kernel in KERNELS for mean in MEANS]
    outcomes = set()
    for k in range(n):
        section = copy.deepcopy(sections[k % len(sections)])
        for _ in range(int(rng.integers(1, 3))):
            change_entry(section.header["families"][0], rng)
        try:
            (family,) = read_families(section)
        except ModelFileError:
            outcomes.add(ModelFileError)
            continue
        (process,) = family.processes
        bound = process.leaf_kernel.at(process.kernel_parameters())
        K, pullback = bound.covariance(rng.normal(size=(4, 3)))
        gradient = process.pull_back(process.theta, pullback(K, np.ones(4), 1.0))
        assert len(gradient) == len(process.log_prior(process.theta)[1]) == len(process.names)
        assert process.kernel.n_dims == 3
        outcomes.add(True)
    assert outcomes == {True, ModelFileError}


# Kernels with values, as a parameter of the constructor

VALUES = Kernel(
    (
        KernelTerm("rq", [0.5, 2.0], 1.5, alpha=0.7),
        KernelTerm("periodic", [1.0, 3.0], 0.5, period=[0.1, 9.0]),
    )
)


def given(kernel):
    section = Section()
    write_parameters({"kernel": kernel, "executor": "ray"}, section)
    section.header = json.loads(json.dumps(section.header))
    return section


def test_a_kernel_with_values_comes_back_as_it_was():
    section = given(VALUES)
    assert section.header["parameters"].keys() == {"kernel"}
    again = read_parameters(["kernel", "executor"], section)["kernel"]
    assert repr(again) == repr(VALUES)
    rows = np.linspace(0, 1, 6).reshape(3, 2)
    np.testing.assert_array_equal(again(rows), VALUES(rows))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "line"}, r"parameters\.kernel\.terms\.1\.kernel' is 'line'"),
        ({"kernel": "rbf*rbf"}, "invalid kernels"),
        ({"columns": [0]}, "invalid kernels"),
        ({"lengthscale": [0.0, 1.0]}, r"terms\.1\.lengthscale' is .* a positive number"),
        ({"lengthscale": [1.0]}, "invalid kernels"),
        ({"period": [1.0]}, "invalid kernels"),
        ({"alpha": "wide"}, r"alpha' is 'wide'"),
    ],
)
def test_a_kernel_with_values_that_make_no_sense_is_refused(change, message):
    section = given(VALUES)
    section.header["parameters"]["kernel"]["terms"][1] |= change
    with pytest.raises(ModelFileError, match=message):
        read_parameters(["kernel"], section)


def test_a_kernel_that_was_added_is_stored_by_its_name(tmp_path, monkeypatch):
    def wendland(r2, shape):
        r = np.sqrt(r2)
        inside = np.maximum(1.0 - r, 0.0)
        return inside**4 * (4.0 * r + 1.0), lambda: 10.0 * inside**3

    monkeypatch.setitem(STATIONARY, "wendland", wendland)
    X = np.linspace(0, 1, 40)[:, None]
    model = DSMGPRegressor("wendland", random_state=0).fit(X, X[:, 0])
    model.save(tmp_path / "model.dsmgp")
    loaded = DSMGPRegressor.load(tmp_path / "model.dsmgp")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    monkeypatch.delitem(STATIONARY, "wendland")
    with pytest.raises(ModelFileError, match="got 'wendland'"):
        DSMGPRegressor.load(tmp_path / "model.dsmgp")
