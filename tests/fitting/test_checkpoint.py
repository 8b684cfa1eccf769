"""An interrupted fit resumes from its checkpoint, with the result of a fit that was never interrupted."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, ModelFileError
from dsmgp._util.archive import read_archive, write_archive
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.fingerprint import fingerprint
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.tree import Leaf, Product, Region, Sum
from tests.support.damage import made_up

# A fit under several hypotheses has no checkpoint.
OPTIONS = {"leaf_size": [40, 80], "hypotheses": None, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(150, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=150)


@pytest.fixture(scope="module")
def whole(rows):
    return DSMGPRegressor(**OPTIONS).fit(*rows)


@pytest.fixture
def count(monkeypatch):
    """Counts evaluations, and interrupts at a given one."""
    seen = {"n": 0, "stop": None}
    evaluate = InMemoryLeafGPs.log_evidence_and_gradient

    def counted(self, *arguments, **options):
        seen["n"] += 1
        if seen["n"] == seen["stop"]:
            raise KeyboardInterrupt
        return evaluate(self, *arguments, **options)

    monkeypatch.setattr(InMemoryLeafGPs, "log_evidence_and_gradient", counted)
    return seen


def test_a_fit_that_was_cut_short_goes_on(rows, whole, tmp_path, count):
    path = tmp_path / "fit.ckpt"
    count["stop"] = 33
    with pytest.raises(KeyboardInterrupt):
        DSMGPRegressor(checkpoint=path, **OPTIONS).fit(*rows)
    assert path.exists()
    count.update(n=0, stop=None)
    model = DSMGPRegressor(checkpoint=path, **OPTIONS).fit(*rows)
    assert count["n"] == whole.n_evaluations_ - 30  # one in five is written down
    assert not path.exists()
    for one, other in zip(model.state_.search.results, whole.state_.search.results, strict=True):
        assert one.path == other.path
        np.testing.assert_array_equal(one.theta, other.theta)
    np.testing.assert_array_equal(model.predict(rows[0]), whole.predict(rows[0]))


def test_without_a_seed_that_of_the_first_try_is_taken_up(rows, tmp_path, count):
    path = tmp_path / "fit.ckpt"
    options = {**OPTIONS, "random_state": None}
    count["stop"] = 40
    with pytest.raises(KeyboardInterrupt):
        DSMGPRegressor(checkpoint=path, **options).fit(*rows)
    state = read_archive(path).header["checkpoint"]["rng"]
    count["stop"] = None
    model = DSMGPRegressor(checkpoint=path, **options).fit(*rows)
    rng = np.random.default_rng()
    rng.bit_generator.state = state
    expected = DSMGPRegressor(**{**OPTIONS, "random_state": rng}).fit(*rows)
    np.testing.assert_array_equal(model.predict(rows[0]), expected.predict(rows[0]))


SCRIPT = """
import sys, numpy as np
from dsmgp import DSMGPRegressor
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(150, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=150)
DSMGPRegressor(leaf_size=[40, 80], hypotheses=None, random_state=0, checkpoint=sys.argv[1]).fit(X, y)
"""


def test_a_driver_that_was_killed_goes_on(rows, whole, tmp_path, count):
    """A real process, killed without warning in the middle of learning."""
    path = tmp_path / "fit.ckpt"
    slow = "import time, dsmgp.experts.leaf_gps as e; f = e.InMemoryLeafGPs.log_evidence_and_gradient\n"
    slow += "e.InMemoryLeafGPs.log_evidence_and_gradient = lambda *a, **k: (time.sleep(0.1), f(*a, **k))[1]\n"
    driver = subprocess.Popen([sys.executable, "-c", slow + SCRIPT, str(path)])
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if path.exists() and int(read_archive(path).header["checkpoint"]["n_searches"]) > 1:
            break
        assert driver.poll() is None, "it ended by itself"
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    model = DSMGPRegressor(checkpoint=path, **OPTIONS).fit(*rows)
    assert 0 < count["n"] < whole.n_evaluations_
    np.testing.assert_array_equal(model.predict(rows[0]), whole.predict(rows[0]))


KERNELS = {
    "values": """
        Kernel((KernelTerm("matern32", [0.5, 2.0], 1.3), KernelTerm("periodic", [1.0, 1.0], 0.5, period=[2.0, 2.0])))""",
    "prior on the length scale": """
        gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.MaternKernel(
                nu=1.5, ard_num_dims=2, lengthscale_prior=gpytorch.priors.GammaPrior(2.0, 1.0)
            ),
            outputscale_constraint=gpytorch.constraints.Interval(0.01, 20.0),
        )""",
    "prior on the period": """
        gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.PeriodicKernel(
                period_length_prior=gpytorch.priors.LogNormalPrior(0.0, 1.0)
            )
        )""",
}

INTERRUPTED = """
import sys, numpy as np
from dsmgp import DSMGPRegressor
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.gp.kernels import Kernel, KernelTerm
IMPORTS
evaluate = InMemoryLeafGPs.log_evidence_and_gradient
def counted(*arguments, **options):
    global n
    n += 1
    if n == 8:
        raise KeyboardInterrupt
    return evaluate(*arguments, **options)
InMemoryLeafGPs.log_evidence_and_gradient = counted
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(150, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=150)
for kernel, path in zip([KERNELS], sys.argv[1:], strict=True):
    n = 0
    options = dict(leaf_size=[40, 80], random_state=0, max_iter=9, checkpoint=path)
    try:
        DSMGPRegressor(kernel, **options).fit(X, y)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Checkpoints of fits that another process began, by the names of their kernels."""
    folder = tmp_path_factory.mktemp("interrupted")
    with_gpytorch = find_spec("gpytorch") is not None
    codes = {
        name: textwrap.dedent(code).strip()
        for name, code in KERNELS.items()
        if with_gpytorch or "gpytorch" not in code
    }
    script = INTERRUPTED.replace("IMPORTS", "import gpytorch" if with_gpytorch else "")
    script = script.replace("KERNELS", ", ".join(codes.values()))
    paths = {name: folder / f"{k}.ckpt" for k, name in enumerate(codes)}
    done = subprocess.run(
        [sys.executable, "-c", script, *paths.values()],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["interrupted"] * len(codes), done.stderr
    return paths


@pytest.mark.parametrize("name", KERNELS)
def test_a_fit_with_a_kernel_object_resumes_in_another_process(rows, interrupted, count, name):
    code = textwrap.dedent(KERNELS[name]).strip()
    names = {"Kernel": Kernel, "KernelTerm": KernelTerm}
    if "gpytorch" in code:
        names = {"gpytorch": pytest.importorskip("gpytorch")}
    options = {**OPTIONS, "max_iter": 9}
    expected = DSMGPRegressor(eval(code, names), **options).fit(*rows)
    count["n"] = 0
    model = DSMGPRegressor(eval(code, names), checkpoint=interrupted[name], **options).fit(*rows)
    assert count["n"] == expected.n_evaluations_ - 5  # one in five is written down
    np.testing.assert_array_equal(model.predict(rows[0]), expected.predict(rows[0]))


def kernel_with(nu=1.5, rate=1.0, upper=20.0, length=1.0, fixed=False):
    gpytorch = pytest.importorskip("gpytorch")
    kernel = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.MaternKernel(nu, lengthscale_prior=gpytorch.priors.GammaPrior(2.0, rate)),
        outputscale_constraint=gpytorch.constraints.Interval(0.01, upper),
    )
    kernel.base_kernel.lengthscale = length
    kernel.base_kernel.raw_lengthscale.requires_grad_(not fixed)
    return kernel


def assert_told_apart(settings):
    prints = [fingerprint([np.zeros(2)], FitConfig(**own)) for own in settings]
    assert len(set(prints)) == len(prints)
    return prints


def test_the_fingerprint_tells_kernels_and_trees_apart():
    parts = Region.whole(1).split(0, [0.5])
    split = Product([Leaf(part) for part in parts], 0, [0.5])
    other = Product([Leaf(part) for part in Region.whole(1).split(0, [0.25])], 0, [0.25])
    terms = [
        KernelTerm("rbf", [0.5], 1.0),
        KernelTerm("rbf", [0.6], 1.0),
        KernelTerm("rbf", [0.5], 2.0),
        KernelTerm("matern32", [0.5], 1.0),
        KernelTerm("rq", [0.5], 1.0, alpha=0.5),
        KernelTerm("rq", [0.5], 1.0, alpha=0.6),
        KernelTerm("periodic", [0.5], 1.0, period=[2.0]),
        KernelTerm("periodic", [0.5], 1.0, period=[3.0]),
    ]
    prints = assert_told_apart(
        [
            *({"kernel": Kernel((term,))} for term in terms),
            {"kernel": Kernel((terms[0], terms[3]))},
            {"kernel": Kernel((terms[3], terms[0]))},
            {"kernel": "rbf"},
            *({"structure": tree} for tree in (
                split, other, Sum([split, other]), Sum([other, split]), Sum([split, other], np.log([0.3, 0.7]))
            )),
        ]
    )  # fmt: skip
    same = Kernel((KernelTerm("rbf", [0.5], 1.0),))
    assert fingerprint([np.zeros(2)], FitConfig(kernel=same)) == prints[0]
    assert fingerprint([np.zeros((2, 1))], FitConfig(kernel=same)) != prints[0]


def test_the_fingerprint_tells_gpytorch_kernels_apart():
    gpytorch = pytest.importorskip("gpytorch")
    prints = assert_told_apart(
        [
            *({"kernel": kernel_with(**change)} for change in (
                {}, {"nu": 2.5}, {"rate": 2.0}, {"upper": 30.0}, {"length": 2.0}, {"fixed": True}
            )),
            {"kernel": gpytorch.kernels.RBFKernel()},
            {"kernel": "rbf"},
        ]
    )  # fmt: skip
    assert fingerprint([np.zeros(2)], FitConfig(kernel=kernel_with())) == prints[0]
    assert fingerprint([np.zeros((2, 1))], FitConfig(kernel=kernel_with())) != prints[0]


def test_the_fingerprint_is_the_same_after_an_upgrade_of_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    before = fingerprint([np.zeros(2)], FitConfig(kernel=kernel_with()))
    assert before != fingerprint([np.zeros(2)], FitConfig(kernel=kernel_with(rate=2.0)))
    for kind in (torch.nn.Module, torch.distributions.Distribution):
        initialise = kind.__init__

        def upgraded(self, *arguments, initialise=initialise, **options):
            initialise(self, *arguments, **options)
            object.__setattr__(self, "_new_in_torch_3", True)

        monkeypatch.setattr(kind, "__init__", upgraded)
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    monkeypatch.setattr(torch.nn.Softplus, "__module__", "torch.nn.elsewhere")
    assert fingerprint([np.zeros(2)], FitConfig(kernel=kernel_with())) == before


def test_the_checkpoint_of_another_fit_is_refused(rows, tmp_path, count):
    X, y = rows
    path = tmp_path / "fit.ckpt"
    count["stop"] = 20
    with pytest.raises(KeyboardInterrupt):
        DSMGPRegressor(checkpoint=path, **OPTIONS).fit(X, y)
    count["stop"] = None
    kept = path.read_bytes()
    for options, target in (
        (OPTIONS, y + 1),
        ({**OPTIONS, "mean": "constant"}, y),
        ({**OPTIONS, "random_state": 1}, y),
    ):
        with pytest.raises(ValueError, match=r"belongs to a fit of other rows.*delete it"):
            DSMGPRegressor(checkpoint=path, **options).fit(X, target)
    assert path.read_bytes() == kept
    path.write_bytes(kept[:-100])
    with pytest.raises(ModelFileError, match=r"cannot be read.*delete"):
        DSMGPRegressor(checkpoint=path, **OPTIONS).fit(X, y)
    for odd in (tmp_path, path):  # never by a call to delete what may be precious
        with pytest.raises(ModelFileError, match="give another path, or delete it if it is an old"):
            DSMGPRegressor(checkpoint=odd, **OPTIONS).fit(X, y)
    with pytest.raises(ModelFileError, match="does not exist; create it"):
        DSMGPRegressor(checkpoint=tmp_path / "no" / "fit.ckpt", **OPTIONS).fit(X, y)


@pytest.mark.parametrize("former", ["0.0.9", None])
def test_the_checkpoint_of_another_version_says_so(rows, tmp_path, count, monkeypatch, former):
    X, y = rows
    path = tmp_path / "fit.ckpt"
    count["stop"] = 20
    with pytest.raises(KeyboardInterrupt):
        DSMGPRegressor(checkpoint=path, **OPTIONS).fit(X, y)
    count["stop"] = None
    archive = read_archive(path)
    header = dict(archive.header["checkpoint"])
    header.pop("version")
    if former is not None:
        header["version"] = former
    write_archive(path, {"checkpoint": header}, archive.arrays)
    kept = path.read_bytes()
    told = former or "0.1.0 or earlier"
    with pytest.raises(ValueError, match=f"was written by dsmgp {told}, this is .*delete it"):
        DSMGPRegressor(checkpoint=path, **OPTIONS).fit(X, y)
    assert path.read_bytes() == kept


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("n", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_checkpoint_that_was_made_up_is_refused_or_changes_little(
    rows, tmp_path, count, rng, n, seed
):
    """Its sum is right. What it says may be wrong, but no more comes of it than an error in words or another search."""
    X, y = rows[0][:40], rows[1][:40]
    path = tmp_path / "fit.ckpt"
    model = DSMGPRegressor("rbf", random_state=seed, checkpoint=path, max_iter=8)
    count["stop"] = 7
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    content, refusals = path.read_bytes(), []
    count["stop"] = None
    for _ in range(n):
        path.write_bytes(made_up(content, [content], rng))
        try:
            model.fit(X, y)
        except ValueError as error:
            refusals.append(str(error))
            continue
        assert np.isfinite(model.predict(X)).all()
    assert 0 < len(refusals) < n
    assert all(str(path) in refusal for refusal in refusals)


def test_what_a_link_points_to_is_removed_at_the_end(rows, whole, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("fit.ckpt")
    model = DSMGPRegressor(checkpoint=link, **OPTIONS).fit(*rows)
    np.testing.assert_array_equal(model.predict(rows[0]), whole.predict(rows[0]))
    assert not (tmp_path / "fit.ckpt").exists()
