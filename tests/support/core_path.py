"""Go through the whole default path with the core dependencies only; a script for an environment that has nothing else."""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import dsmgp
from dsmgp import DSMGPRegressor, baselines

OPTIONAL = ("torch", "gpytorch", "pandas", "pyarrow", "matplotlib", "ray", "polars")
QUICK = {"leaf_size": 60, "max_iter": 5, "random_state": 0}
# Those that are written in NumPy.
BASELINES = (
    "BCM", "ConstantBaseline", "ExactGP", "GPoE", "GRBCM", "LinearBaseline", "MoE", "NaiveLocalExperts", "PoE", "RBCM",
)  # fmt: skip


def rows(n=240):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + (X[:, 1] > 0.5) + 0.1 * rng.normal(size=n)


def check_model(model, X, y, rtol=0.0):
    """Point predictions, distributions, scores and draws make sense, and a file holds all of the model.

    After online updates, whose factors are extended, a file's leaves are conditioned anew: equal but for rounding, ``rtol``.
    """
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    distribution = model.predict_dist(X)
    low, high = distribution.interval(0.9)
    assert (low < high).all()
    assert np.isfinite(distribution.logpdf(y)).all()
    has_segments = (
        model.structure == "changepoint"
    )  # which have neither LOO scores nor factors that are kept
    if not has_segments:
        assert np.isfinite([model.loo_score_, model.loo_score_new_inputs_]).all()
    assert np.isfinite(model.sample_y(X[:3], 2, random_state=0)).all()
    assert model.summary()
    assert len(model.noise_at(X)) == len(X)
    with tempfile.TemporaryDirectory() as folder:
        model.save(path := Path(folder) / "model.dsmgp")
        np.testing.assert_allclose(
            dsmgp.load(path).predict(X), model.predict(X), rtol=rtol, atol=rtol
        )


def check_fits():
    X, y = rows()
    options = [
        {},
        {"effort": "low"},
        {"kernel": "rbf", "weights": "posterior", **QUICK},
        {"kernel": "matern52", "structure": "paper", "mean": "linear", **QUICK},
        {"kernel": "matern32+rq", "mean": "constant", **QUICK},
        {"kernel": "periodic", "objective": "full", **QUICK},
    ]
    for settings in options:
        model = DSMGPRegressor(**settings).fit(X, y)
        check_model(model, X, y)
        assert str(model.kernel_)
        print("fitted", settings, flush=True)
    Y = np.column_stack([y, X[:, 0] - y])
    model = DSMGPRegressor("matern32", **QUICK).fit(X, Y)
    check_model(model, X, Y)
    again = DSMGPRegressor(model.kernel_, **QUICK) if not isinstance(model.kernel_, list) else None
    if again is not None:
        again.fit(X, Y)
    noisy = DSMGPRegressor("rbf", **QUICK).fit(X, y, noise=np.full(len(y), 0.01))
    check_model(noisy, X, y)
    print("fitted two outputs and known noise", flush=True)


def check_updates():
    X, y = rows()
    model = DSMGPRegressor("matern32", **QUICK).fit(X[:200], y[:200])
    model.partial_fit(X[200:], y[200:])
    assert len(model.row_ids_) == 240
    model.forget(model.row_ids_[:30])
    check_model(model, X, y, rtol=1e-10)
    model.finetune(max_iter=2)
    model.finetune(max_iter=2, parameters="all", rounds=1)
    check_model(model, X, y)
    print("updated and fine-tuned", flush=True)


def check_change_points():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 200)
    y = np.sin(6 * x) + 2 * (x > 0.5) + 0.1 * rng.normal(size=200)
    model = DSMGPRegressor("rbf", structure="changepoint", random_state=0).fit(x[:, None], y)
    check_model(model, x[:, None], y)
    (change,) = model.changepoints(0.5)
    assert change.low < 0.52
    assert change.high > 0.48
    print("found the change", flush=True)


def check_baselines():
    X, y = rows()
    for name in BASELINES:
        mean = getattr(baselines, name)().fit(X, y).predict(X)
        assert np.isfinite(mean).all(), name
        print("fitted", name, flush=True)


def error_of(call):
    try:
        call()
    except ImportError as error:
        return str(error)
    return "no error"


def check_what_needs_torch():
    """Every way to ask for torch ends in one line that names the extra."""
    X, y = rows()
    model = DSMGPRegressor("rbf", **QUICK).fit(X, y)
    for what, call in {
        "device='cuda'": lambda: DSMGPRegressor(device="cuda").fit(X, y),
        "dtype='float32'": lambda: DSMGPRegressor(dtype="float32").fit(X, y),
        "dsmgp.baselines.SVGP": lambda: baselines.SVGP,
        "dsmgp.baselines.KISSGP": lambda: baselines.KISSGP,
        "to_gpytorch()": model.to_gpytorch,
    }.items():
        message = error_of(call)
        assert message == f"{what} needs torch and gpytorch: pip install 'dsmgp[torch]'", message
    print("errors name the extra", flush=True)


def main():
    assert not [name for name in OPTIONAL if find_spec(name)]
    assert "site-packages" in dsmgp.__file__
    check_fits()
    check_updates()
    check_change_points()
    check_baselines()
    check_what_needs_torch()
    # Compiled code runs, made of the LLVM code that is shipped with the package: numba compiles nothing.
    assert "llvmlite" in sys.modules
    assert "numba" not in sys.modules
    print("all done")


if __name__ == "__main__":
    main()
