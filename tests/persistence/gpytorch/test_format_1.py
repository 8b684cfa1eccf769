"""Files of format 1: they predict what they did, and those of named kernels are read without torch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsmgp import ModelFileError, load
from dsmgp.gp.leaf_kernels import MEANS
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import build_process
from dsmgp.gp.terms import NAMED_KERNELS
from dsmgp.persistence.gpytorch.format_1 import named_process
from dsmgp.persistence.gpytorch.module_description import PROCESS
from dsmgp.persistence.record import Section
from tests.support.damage import change_entry, packed, unpacked

DATA = Path(__file__).parents[2] / "data"
EXPECTED = json.loads((DATA / "format-1-kinds.json").read_text())
SAMPLES = [name for name in EXPECTED if name != "X"]
NAMED_SAMPLES = [name for name in SAMPLES if name != "gpytorch"]


def path_of(sample):
    return DATA / f"format-1-{sample}.dsmgp"


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_file_of_every_kind_predicts_what_it_did(sample, tmp_path):
    """Fine-tuned sums of kernels, factors and a linear mean, GPyTorch's modules, two families, change points."""
    if sample == "gpytorch":
        pytest.importorskip("gpytorch")
    model, expected = load(path_of(sample)), EXPECTED[sample]
    X = np.array(EXPECTED["X"])[:, : model.n_features_in_]
    for _ in range(2):  # again after it was written in the present format
        mean, std = model.predict(X, return_std=True)
        np.testing.assert_allclose(mean, expected["mean"], rtol=1e-9)
        np.testing.assert_allclose(std, expected["std"], rtol=1e-9)
        np.testing.assert_allclose(model.noise_at(X), expected["noise"], rtol=1e-9)
        evidence = expected["log_marginal_likelihood"]
        assert model.log_marginal_likelihood_ == pytest.approx(evidence, rel=1e-9)
        model.save(tmp_path / "now.dsmgp")
        model = load(tmp_path / "now.dsmgp")
    processes = [process for family in model.state_.model.families for process in family.processes]
    is_named = [isinstance(process, NamedProcess) for process in processes]
    assert all(is_named) if sample != "gpytorch" else not any(is_named)


WITHOUT_TORCH = """
import importlib.machinery, sys
class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, *rest):
        return None if name in ("torch", "gpytorch") else super().find_spec(name, *rest)
sys.meta_path = [Hiding if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
import dsmgp
for path in sys.argv[2:]:
    dsmgp.load(path).save(sys.argv[1])
    dsmgp.load(sys.argv[1])
"""


def test_only_modules_of_gpytorch_need_torch(tmp_path):
    def run(samples):
        command = [sys.executable, "-c", WITHOUT_TORCH, tmp_path / "now.dsmgp"]
        paths = [path_of(sample) for sample in samples]
        return subprocess.run([*command, *paths], capture_output=True, text=True)

    done = run(NAMED_SAMPLES)
    assert done.returncode == 0, done.stderr
    done = run(["gpytorch"])
    assert done.stderr.strip().endswith(
        "ImportError: a model with a gpytorch kernel or mean needs torch and gpytorch: pip install 'dsmgp[torch]'"
    )


@pytest.mark.parametrize("sample", SAMPLES)
def test_files_whose_modules_were_made_up_are_refused_or_read(sample, tmp_path, rng):
    pytest.importorskip("gpytorch")  # for modules that are no longer those of a named kernel
    path, outcomes = tmp_path / "made up.dsmgp", set()
    content = path_of(sample).read_bytes()
    for _ in range(40):
        header, arrays = unpacked(content)
        change_entry(header["families"], rng)
        path.write_bytes(packed(header, arrays))
        try:
            predicted = load(path).predict(arrays["X"][:2])
        except ModelFileError:
            outcomes.add(ModelFileError)
        else:
            outcomes.add(bool(np.isfinite(predicted).all()))
    assert ModelFileError in outcomes
    assert False not in outcomes


# Which modules are those of a named kernel and mean


def described(kernel="matern32+periodic", mean="constant", n_dims=2):
    """A named process, and the section in which format 1 describes its modules."""
    pytest.importorskip("gpytorch")
    from dsmgp.gp.gpytorch_process import GPyTorchProcess, gpytorch_modules
    from dsmgp.persistence.gpytorch.modules import write_process

    process = build_process(kernel, mean, 0.05, n_dims, spread=np.arange(1.0, n_dims + 1))
    process = process.with_theta(process.theta + np.linspace(-0.5, 0.5, len(process.theta)))
    section = Section(sizes={"coordinates": n_dims})
    write_process(GPyTorchProcess(gpytorch_modules(process), n_dims), section)
    return process, section


def read(section):
    return named_process(PROCESS.read(section), section)


# Format 1 is older than "linear".
@pytest.mark.parametrize(
    "kernel",
    [*(name for name in NAMED_KERNELS if name != "linear"), "matern32+periodic", "rq+rbf+periodic"],
)
@pytest.mark.parametrize("mean", MEANS)
def test_the_modules_of_a_named_process_are_recognised(kernel, mean):
    process, section = described(kernel, mean)
    again = read(section)
    assert again.leaf_kernel == process.leaf_kernel
    assert again.names == process.names
    np.testing.assert_array_equal(again.theta, process.theta)
    np.testing.assert_array_equal(again.kernel_parameters(), process.kernel_parameters())
    for ours, theirs in zip(
        again.log_prior(process.theta), process.log_prior(process.theta), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert [block.lower for block in again.blocks] == [block.lower for block in process.blocks]


def test_scalar_priors_hold_for_every_entry():
    """Periods had one in format 1."""
    process, section = described("periodic", "zero")
    base = section.header["kernel"]["parts"][0]
    for key, value in (("loc", 0.0), ("scale", 2.0)):
        base["priors"]["period_length"][key] = {"dtype": "float32", "values": value}
    ours, theirs = (each.log_prior(process.theta) for each in (read(section), process))
    np.testing.assert_array_equal(ours[1], theirs[1])


SCALE, BASE = ("kernel", "parts", 0), ("kernel", "parts", 0, "parts", 0)
NUMBER = {"dtype": "float64", "values": 0.5}


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("kernel", "class"), "ProductKernel"),
        ((*SCALE, "options"), {"active_dims": [0, 1]}),
        ((*SCALE, "fixed"), ["raw_outputscale"]),
        ((*SCALE, "dtype"), "float32"),
        ((*SCALE, "constraints"), {}),
        ((*BASE, "options", "ard_num_dims"), 1),
        ((*BASE, "options", "active_dims"), [0]),
        ((*BASE, "constraints", "lengthscale", "transform"), "softplus"),
        ((*BASE, "constraints", "lengthscale", "class"), "Interval"),
        ((*BASE, "constraints", "lengthscale", "lower"), NUMBER),
        ((*BASE, "constraints", "lengthscale", "upper"), NUMBER),
        ((*BASE, "priors", "lengthscale"), {"class": "NormalPrior", "loc": NUMBER, "scale": NUMBER}),
        ((*BASE, "priors", "lengthscale", "scale"), {"dtype": "float64", "values": [1.0, 2.0]}),
        ((*BASE, "priors", "lengthscale", "loc"), {"dtype": "float64", "values": [1.0, 2.0, 3.0]}),
        (("mean",), {"own": "MyMean"}),
        (("mean", "fixed"), ["raw_constant"]),
        (("likelihood", "fixed"), True),
        (("likelihood", "constraint", "transform"), "softplus"),
        (("likelihood", "constraint", "lower", "values"), -1.0),
    ],
)  # fmt: skip
def test_other_modules_are_not_taken_for_those_of_a_named_process(keys, value):
    _, section = described()
    home = section.header
    for key in keys[:-1]:
        home = home[key]
    home[keys[-1]] = value
    assert read(section) is None
