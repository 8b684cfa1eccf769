"""Models fitted in parallel equal those fitted alone, and the state of the process does not change."""

import logging
import multiprocessing
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import joblib
import numpy as np
import pytest

from dsmgp import DSMGPRegressor, load
from dsmgp.linalg import threads
from dsmgp.progress import Listener, active_listeners, listening

try:
    import gpytorch
    import linear_operator
    import torch
    from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

N = 90
RNG = np.random.default_rng(5)
X = RNG.uniform(-2, 2, size=(N, 2))
Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] ** 2]) + 0.1 * RNG.normal(size=(N, 2))


def kinds():
    """Models that use different parts of the library: compiled code, batches, GPyTorch kernels, several outputs."""
    small = {"leaf_size": 30, "sum_children": 2, "max_iter": 3}
    found = {
        "compiled": (DSMGPRegressor("matern32", random_state=0, **small), Y[:, 0]),
        "auto": (DSMGPRegressor(effort="low", max_iter=3, random_state=1), Y[:, 1]),
        "two outputs": (DSMGPRegressor("rbf", random_state=4, **small), Y),
    }
    if torch is not None:
        kernel = ScaleKernel(RBFKernel()) + LinearKernel()
        found["general"] = DSMGPRegressor(kernel, "linear", random_state=2, **small), Y[:, 0]
        single = DSMGPRegressor("rbf", "linear", dtype="float32", random_state=3, **small)
        found["single"] = single, Y[:, 1]
    return found


def results_of(name):
    """Predictions and evidence of a model that was fitted, updated and fine-tuned."""
    model, y = kinds()[name]
    model.fit(X[:80], y[:80]).partial_fit(X[80:], y[80:])
    model.finetune(max_iter=2)
    mean, std = model.predict(X[:20], return_std=True)
    return np.concatenate([mean.ravel(), std.ravel(), [model.log_marginal_likelihood_]])


@needs_torch
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("name", [*kinds(), "changes"])
def test_fits_do_not_depend_on_torchs_gradient_mode(name, mode):
    """Without gradients the optimiser would not move."""

    def results():
        if name == "changes":
            return DSMGPRegressor("rbf", structure="changepoint", max_iter=3).fit(X, Y).predict(X)
        return results_of(name)

    with getattr(torch, mode)():
        found = results()
        assert torch.is_inference_mode_enabled() == (mode == "inference_mode")
        assert not torch.is_grad_enabled()
    np.testing.assert_array_equal(found, results())


@needs_torch
def test_models_fitted_and_loaded_in_inference_mode_can_be_finetuned(tmp_path):
    model, y = kinds()["general"]
    with torch.inference_mode():
        model.fit(X, y).predict(X, return_std=True)
        model.save(tmp_path / "m.dsmgp")
        loaded = load(tmp_path / "m.dsmgp")
    loaded.predict(X)
    np.testing.assert_array_equal(
        loaded.finetune(max_iter=2).predict(X), model.finetune(max_iter=2).predict(X)
    )


@pytest.fixture(scope="module")
def alone():
    """One after the other."""
    return {name: results_of(name) for name in kinds()}


def test_models_fitted_at_once_in_threads_are_those_fitted_alone(alone):
    names = list(alone) * 2
    with ThreadPoolExecutor(len(names)) as pool:
        for name, found in zip(names, pool.map(results_of, names), strict=True):
            np.testing.assert_array_equal(found, alone[name], err_msg=name)


def test_one_model_predicts_in_many_threads_at_once():
    model, y = kinds()["two outputs"]
    model.set_params(memory_limit="30 kB").fit(X, y)  # factors are computed again, and dropped
    expected = model.predict(X, return_std=True)
    with ThreadPoolExecutor(6) as pool:
        for mean, std in pool.map(lambda _: model.predict(X, return_std=True), range(12)):
            np.testing.assert_array_equal(mean, expected[0])
            np.testing.assert_array_equal(std, expected[1])


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_models_fitted_in_processes_are_those_fitted_alone(alone, start):
    names = [name for name in ("compiled", "general", "single") if name in alone]
    if torch is not None:
        torch.tril(
            torch.ones(500, 500, dtype=torch.float64)
        )  # OpenMP's threads, which no child has
    with multiprocessing.get_context(start).Pool(2) as pool:
        found = pool.map_async(results_of, names).get(timeout=300)
    for name, results in zip(names, found, strict=True):
        np.testing.assert_array_equal(results, alone[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_models_fitted_by_joblib_are_those_fitted_alone(alone, backend):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of joblib's own
        found = joblib.Parallel(2, backend=backend)(
            joblib.delayed(results_of)(name) for name in alone
        )
    for name, results in zip(alone, found, strict=True):
        np.testing.assert_array_equal(results, alone[name], err_msg=name)


# The state of the process


def flags(module):
    """GPyTorch's settings, all of them of the process."""
    found = {}
    for name, value in vars(module).items():
        for part in ("_state", "_global_value", "_global_float_value", "_global_double_value"):
            if isinstance(value, type) and hasattr(value, part):
                found[name, part] = getattr(value, part)
    return found


def state_of_process():
    logger = logging.getLogger("dsmgp")
    state = {
        "numpy seed": np.random.get_state()[1].tobytes(),  # noqa: NPY002
        "numpy errors": np.geterr(),
        "threads": threads.n_threads(),
        "BLAS threads": [number() for number, _ in threads.blas_thread_settings()],
        "log": (logger.level, list(logger.handlers)),
        "listeners": active_listeners(),
        "mask": mask_of_process(),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    return state if torch is None else state | state_of_torch()


def state_of_torch():
    fresh = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return {
        "torch threads": (torch.get_num_threads(), *fresh),
        "torch dtype": torch.get_default_dtype(),
        "torch gradients": torch.is_grad_enabled(),
        "torch seed": torch.random.get_rng_state().numpy().tobytes(),
        "gpytorch": flags(gpytorch.settings),
        "linear_operator": flags(linear_operator.settings),
    }


def mask_of_process():
    with open("/proc/self/status") as file:
        return next(line for line in file if line.startswith("Umask"))


def calls(folder, name="general"):
    """Public calls, each on a model of its own where it changes one."""
    model, y = kinds()[name]
    path = folder / f"{name.replace(' ', '_')}.dsmgp"
    yield "fit", lambda: model.set_params(verbose=True).fit(X, y)
    yield "predict", lambda: model.predict(X, return_std=True)
    yield "covariance", lambda: model.predict(X[:5], return_cov=True)
    yield "distribution", lambda: model.predict_dist(X).interval(0.9)
    yield "draws", lambda: model.sample_y(X[:5], 2, random_state=0)
    yield "partial_fit", lambda: model.partial_fit(X[:7], y[:7])
    yield "forget", lambda: model.forget(np.arange(3))
    yield "finetune", lambda: model.finetune(max_iter=1)
    yield "summary", lambda: (model.summary(), model.noise_at(X), model.split_posterior(0))
    yield "save", lambda: model.save(path)
    yield "load", lambda: load(path).predict(X)
    yield "refused", lambda: refused(model, y)


def refused(model, y):
    with pytest.raises(ValueError, match="inconsistent"):
        model.fit(X, y[:-1])


@pytest.mark.parametrize("name", [n for n in ("compiled", "general", "single") if n in kinds()])
def test_every_call_leaves_the_process_as_it_was(tmp_path, capfd, name):
    results_of(name)  # threads are there, and code is loaded
    before = state_of_process()
    for call, run in calls(tmp_path, name):
        run()
        after = state_of_process()
        different = [key for key in before if before[key] != after[key]]
        assert not different, (call, different)


def test_calls_that_overlap_leave_the_process_as_it_was(tmp_path, capfd):
    names = ["general", "single", "compiled", "general", "single"]
    if torch is None:
        names = ["compiled", "two outputs", "auto", "compiled", "two outputs"]
    for name in set(names):
        results_of(name)
    before = state_of_process()
    together = threading.Barrier(len(names))

    def all_calls(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        together.wait()
        for call, run in calls(folder, names[number]):
            if call != "refused":
                run()

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(all_calls, range(len(names))))
    after = state_of_process()
    assert not [key for key in before if before[key] != after[key]]


def test_a_listener_of_one_thread_neither_hears_nor_stops_the_fits_of_another():
    model, y = kinds()["compiled"]
    alone = model.fit(X, y).n_evaluations_
    heard = []
    listener = Listener(lambda share, text: heard.append(share))
    listener.stop()
    with listening(listener), ThreadPoolExecutor(1) as pool:
        assert pool.submit(model.fit, X, y).result().n_evaluations_ == alone
        assert not heard
        assert model.fit(X, y).n_evaluations_ < alone
    assert heard


@needs_torch
def test_loading_a_linear_mean_draws_no_random_numbers(tmp_path):
    model, y = kinds()["single"]
    model.fit(X, y).save(tmp_path / "model.dsmgp")
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    load(tmp_path / "model.dsmgp")
    assert torch.equal(torch.random.get_rng_state(), before)


def held_while(work, *held):
    """Exit code of a child that is forked while another thread of its parent is inside the library."""
    with ExitStack() as stack:
        for lock in held:
            stack.enter_context(lock)
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
    child.join(120)
    if child.exitcode is None:
        child.kill()
    return child.exitcode


@pytest.mark.parametrize("name", ["compiled", pytest.param("general", marks=needs_torch)])
def test_a_fork_while_another_thread_is_inside_the_library_does_not_hang(alone, name):
    held = [threads.one_thread()]
    if name == "general":
        from dsmgp.gp.gpytorch_leaf_kernel import one_at_a_time

        held.append(one_at_a_time())
    expected = alone[name]
    work = lambda: np.testing.assert_array_equal(results_of(name), expected)  # noqa: E731
    assert held_while(work, *held) == 0
