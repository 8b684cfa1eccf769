"""The backends over the bare factorisation, the cost model of effort, and prediction.

    python benchmarks/engine.py [--sizes 50,100,...] [--seconds 6] [--quick]

Three tables. Evidence and gradient of many leaves of M rows over the floor: the fastest way found to factorise and invert the same
matrices, in double precision, on all cores (or on the GPU). Conditioning with every row left out: seconds per row,
and the constants of ``dsmgp.fitting.effort`` that fit them best beside those in use. Prediction at M=500 with 8 partitions.
All variants take turns in rounds; ratios are of minimums and of medians over rounds, and of the CPU time of all threads, which
other programs on the machine disturb least. A ratio below one is possible: the backend inverts a factor by products of
blocks, which is faster than LAPACK's potri; or the floor was disturbed.
Writes benchmarks/results/engine.json.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import cython_lapack
from scipy.optimize import nnls

from dsmgp import DSMGPRegressor
from dsmgp.experts.backends.numba_backend import NumbaBackend
from dsmgp.experts.backends.torch_backend import TorchBackend
from dsmgp.experts.conditioning import condition
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting import effort
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.torch_kernels import bind
from dsmgp.linalg import lapack
from dsmgp.linalg.threads import Threads
from dsmgp.tree import Leaf, Region
from harness import generated, interleaved, on_gpu, results_path, setting, table, write_report

SIZES = (50, 100, 200, 400, 1000, 2000)
# Evidence and gradient over the floor, at most.
TARGETS = {100: 1.6, 400: 1.35, 1000: 1.2}
# Matrix elements of all leaves together, and the most leaves.
ELEMENTS, MOST_LEAVES = (2**27, 20_000) if on_gpu() else (2**21, 400)
# A batch of torch's own on one thread: like the backend's, a few matrices that a core's cache holds.
BATCH = 2**18
LEAF_SIZE, PARTITIONS = 500, 8
Variants = dict[str, Callable[[], object]]


class Problem:
    """Leaves of M rows, their matrices, and every way to work on them."""

    def __init__(self, n_rows: int, kind: str, most_leaves: int) -> None:
        n_threads = torch.get_num_threads()
        n_leaves = int(np.clip(ELEMENTS // n_rows**2, 4, most_leaves))
        self.n_rows, self.n_leaves = n_rows, math.ceil(n_leaves / n_threads) * n_threads
        device = "cuda" if on_gpu() else "cpu"
        total = self.n_leaves * n_rows
        X, Y = generated(total, 0)[:2]
        n_dims = X.shape[1]
        kernel = StationaryKernel(kind, tuple(range(n_dims)), "constant")
        kernel_parameters = np.array([2.0] * n_dims + [1.3, 0.1, 0.05])
        whole, numbers = Region.whole(n_dims), np.arange(total).reshape(self.n_leaves, n_rows)
        leaves = [Leaf(whole, rows) for rows in numbers]
        backends = {"batched": partial(TorchBackend, device=device)}
        if not on_gpu() and NumbaBackend.supports([[kernel]]):
            backends["native"] = NumbaBackend
        self.leaf_gps = {
            name: InMemoryLeafGPs(leaves, LeafData(X, Y), [kernel], backend=backend, device=device)
            for name, backend in backends.items()
        }
        self.kernel_parameters = [kernel_parameters]
        rows = torch.from_numpy(X).to(device).view(self.n_leaves, n_rows, -1)
        bound = bind(kernel, torch.from_numpy(kernel_parameters).to(device))
        K, _ = bound.covariance(rows, torch.ones_like(rows[..., 0]).bool())
        K.diagonal(dim1=-2, dim2=-1).add_(float(kernel_parameters[-1]))
        self.matrices = K
        self.work = torch.empty(0) if on_gpu() else torch.empty_like(K)

    def before(self) -> None:
        """The floor works in place: give it its matrices back."""
        if not on_gpu():
            self.work.copy_(self.matrices)

    def gradients(self) -> Variants:
        return {
            f"{name} gradient": lambda e=leaf_gps: e.log_evidence_and_gradient(
                self.kernel_parameters
            )
            for name, leaf_gps in self.leaf_gps.items()
        }

    def conditionings(self) -> Variants:
        return {
            f"{name} condition": lambda e=leaf_gps: condition(
                e, self.kernel_parameters, math.inf, leave_out=True
            )
            for name, leaf_gps in self.leaf_gps.items()
        }

    def floors(self) -> Variants:
        """Ways to factorise and invert all matrices."""
        K = self.matrices
        found: Variants = {"torch": lambda: _inverse(K)}
        if on_gpu():
            found["torch, by products"] = lambda: _inverse_by_products(K)
            if self.n_rows >= 1000:
                found["torch, one by one"] = lambda: [_inverse(one) for one in K]
            return found
        executor = Threads()
        batches = K.split(max(1, BATCH // self.n_rows**2))
        found["torch on threads"] = lambda: executor.map(_inverse, batches)
        if lapack.available:
            arrays = self.work.numpy()

            def invert(piece: list[int]) -> None:
                for number in piece:
                    _potrf_potri(arrays[number])

            # In the backend's pieces, handed out as threads become free: with a fixed share for each
            # the slowest thread would decide, and the floor would lie too high.
            found["LAPACK"] = lambda: executor.map(invert, self.pieces)
        return found

    @property
    def pieces(self) -> list[list[int]]:
        return self.leaf_gps["native" if "native" in self.leaf_gps else "batched"].backend.groups


def _inverse(K: torch.Tensor) -> torch.Tensor:
    return torch.cholesky_inverse(torch.linalg.cholesky(K))


def _inverse_by_products(K: torch.Tensor) -> torch.Tensor:
    factor = torch.linalg.cholesky(K)
    identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device).expand_as(K)
    half = torch.linalg.solve_triangular(factor, identity, upper=False)
    return half.mT @ half


_potri = lapack._export(cython_lapack, "dpotri", 5) if lapack.available else lapack._missing


def _potrf_potri(matrix: np.ndarray) -> None:
    """SciPy's routines as they are, in place, without the interpreter lock."""
    start, n, step = lapack._layout(matrix)
    order, lda, info = lapack._ref(n), lapack._ref(step), ctypes.c_int(0)
    lapack._potrf(lapack._UPPER, order, start, lda, ctypes.addressof(info))
    _potri(lapack._UPPER, order, start, lda, ctypes.addressof(info))


def contenders(floors: Variants, before: Callable[[], object]) -> Variants:
    """The ways that may be the fastest: others would only take the time of the rounds."""
    least = {name: min(times) for name, times in interleaved(floors, 0.0, before, least=1).items()}
    return {name: run for name, run in floors.items() if least[name] < 3 * min(least.values())}


def measure_size(n_rows: int, arguments: argparse.Namespace) -> dict:
    """Floor, gradient and conditioning at one size of leaf, in the same rounds."""
    problem = Problem(n_rows, arguments.kind, 2 if arguments.quick else MOST_LEAVES)
    floors = contenders(problem.floors(), problem.before)
    variants = floors | problem.gradients() | problem.conditionings()
    spent = interleaved(variants, arguments.seconds, problem.before)
    least = {name: min(times) for name, times in spent.items()}
    median = {name: float(np.median(times)) for name, times in spent.items()}
    fastest = min(floors, key=lambda name: least[name])
    row = {
        "M": n_rows,
        "leaves": problem.n_leaves,
        "rounds": len(spent[fastest]),
        "floor": fastest,
        "floor_us_per_leaf": 1e6 * least[fastest] / problem.n_leaves,
        "target": TARGETS.get(n_rows),
    }
    for name in problem.leaf_gps:
        gradient, condition = f"{name} gradient", f"{name} condition"
        row[f"{name}_min_ratio"] = least[gradient] / least[fastest]
        row[f"{name}_median_ratio"] = median[gradient] / min(median[f] for f in floors)
        row[f"{name}_condition_us_per_row"] = 1e6 * least[condition] / problem.n_leaves / n_rows
        row[f"{name}_gradient_over_condition"] = least[gradient] / least[condition]
    if not on_gpu():
        row |= cpu_ratios(problem, floors[fastest], arguments.seconds)
    row["us_per_leaf"] = {name: 1e6 * least[name] / problem.n_leaves for name in variants}
    return row


def cpu_ratios(problem: Problem, floor: Callable[[], object], seconds: float) -> dict[str, float]:
    """Evidence and gradient over the floor in CPU time of all threads together."""
    variants = {"floor": floor} | problem.gradients()
    spent = interleaved(variants, 0.5 * seconds, problem.before, clock=time.process_time)
    least = {name: min(times) for name, times in spent.items()}
    return {
        f"{name}_cpu_ratio": least[f"{name} gradient"] / least["floor"] for name in problem.leaf_gps
    }


def cost_model(rows: list[dict]) -> dict[str, dict[str, float | None]]:
    """Constants of :mod:`dsmgp.fitting.effort` that fit best, relatively, beside those in use.

    ``seconds per row = ROW_SECONDS + m (m + OVERHEAD) / RATE`` is linear in 1, m and m^2.
    """
    backend = "native" if "native_min_ratio" in rows[0] else "batched"
    kind = "cuda" if on_gpu() else "cpu"
    m = np.array([row["M"] for row in rows], dtype=float)
    cost = 1e-6 * np.array([row[f"{backend}_condition_us_per_row"] for row in rows])
    # Columns near one, or nnls takes the small ones for zero.
    units = np.array([1e-6, 1e-8, 1e-11])
    terms = np.column_stack([np.ones_like(m), m, m**2]) * units / cost[:, None]
    row_seconds, linear, square = nnls(terms, np.ones_like(m))[0] * units
    fitted = {
        "ROW_SECONDS": row_seconds,
        "OVERHEAD": linear / square if square else None,
        "RATE": 1.0 / square if square else None,
        "GRADIENT": float(np.median([row[f"{backend}_gradient_over_condition"] for row in rows])),
    }
    used = {
        "ROW_SECONDS": effort.ROW_SECONDS[kind],
        "OVERHEAD": effort.OVERHEAD[kind],
        "RATE": effort.RATE[kind],
        "GRADIENT": effort.GRADIENT,
    }
    row_costs = [
        {"M": int(size), "measured_us": 1e6 * c, "in_use_us": 1e6 * effort.seconds(1, size, kind)}
        for size, c in zip(m, cost, strict=True)
    ]
    return {"engine": backend, "fitted": fitted, "in_use": used, "per_row": row_costs}


def measure_prediction(arguments: argparse.Namespace) -> list[dict]:
    """Rows per second with variance in batches, latency of one row, and means alone."""
    n_train, n_test = (1000, 500) if arguments.quick else (10_000, 500_000 if on_gpu() else 20_000)
    X, Y, X_test, _ = generated(n_train, n_test)
    rows = []
    for weights in ("gated", "posterior", "uniform"):
        model = DSMGPRegressor(
            "matern32", noise_variance=0.05, leaf_size=LEAF_SIZE,
            sum_children=PARTITIONS, weights=weights, optimizer=None, random_state=0,
        ).fit(X, Y[:, 0])  # fmt: skip
        variants = {
            "with variance": lambda m=model: m.predict(X_test, return_std=True),
            "bare solves": _bare_solves(model, X_test),
            "means alone": lambda m=model: m.predict(X_test),
        }
        spent = interleaved(variants, arguments.seconds)
        single = {"one row": lambda m=model: m.predict(X_test[:1], return_std=True)}
        latency = interleaved(single, 0.5 * arguments.seconds, least=20)["one row"]
        least = {name: min(times) for name, times in spent.items()}
        rows.append(
            {
                "weights": weights,
                "rows_per_second": n_test / least["with variance"],
                "target_rows_per_second": 500_000 if on_gpu() else 8_000,
                "over_bare_solves": least["with variance"] / least["bare solves"],
                "one_row_ms": 1e3 * float(np.median(latency)),
                "target_one_row_ms": 10,
                "means_alone_faster": least["with variance"] / least["means alone"],
                "target_means_alone_faster": None if weights == "gated" else 5,
            }
        )
    return rows


def _bare_solves(model: DSMGPRegressor, X_test: np.ndarray) -> Callable[[], object]:
    """The triangular solves that variances at these rows need, and nothing else."""
    conditioned = model.state_.model.leaf_posterior
    tasks, device = [], conditioned.leaf_gps.device
    routes = model.state_.model.router.route(X_test)
    for number, n_points in zip(routes.leaf, routes.rows.sizes, strict=True):
        factor = torch.from_numpy(conditioned.factor(0, number)).to(device)
        tasks.append((factor, factor.new_ones(len(factor), int(n_points))))

    def solve(task: tuple[torch.Tensor, torch.Tensor]) -> None:
        for tile in task[1].split(4096, dim=1):
            torch.linalg.solve_triangular(task[0], tile, upper=False)

    return lambda: conditioned.leaf_gps.threads.map(solve, tasks)


def page(report: dict) -> str:
    """The results in words."""
    rows, model, prediction = report["gradient"], report["cost_model"], report["prediction"]
    columns = {"M": "M", "leaves": "leaves", "floor": "floor", "floor_us_per_leaf": "µs per leaf"}
    for name in ("native", "batched"):
        if f"{name}_min_ratio" in rows[0]:
            columns[f"{name}_min_ratio"] = f"{name} over floor, minimum"
            columns[f"{name}_median_ratio"] = "median"
        if f"{name}_cpu_ratio" in rows[0]:
            columns[f"{name}_cpu_ratio"] = "CPU time"
    costs = {"M": "M", "measured_us": "µs per row", "in_use_us": "by the model in use"}
    constants = [
        {"constant": name, "fitted": value, "used": model["in_use"][name]}
        for name, value in model["fitted"].items()
    ]
    answers = {
        "weights": "weights", "rows_per_second": "rows/s with variance",
        "target_rows_per_second": "at least", "over_bare_solves": "time over bare solves",
        "one_row_ms": "one row (ms)", "target_one_row_ms": "at most",
        "means_alone_faster": "means alone faster by", "target_means_alone_faster": "at least",
    }  # fmt: skip
    parts = [
        "Evidence and gradient",
        table(columns | {"target": "at most"}, rows),
        f"Conditioning, rows left out ({model['engine']} engine)",
        table(costs, model["per_row"]),
        table({"constant": "constant", "fitted": "fitted", "used": "in use"}, constants),
        f"Prediction, M={LEAF_SIZE}, {PARTITIONS} partitions",
        table(answers, prediction),
    ]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--kind", default="matern52")
    parser.add_argument("--seconds", type=float, default=6.0, help="of rounds at each size")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.seconds = "30,50,100", 0.1
    torch.set_num_threads(arguments.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [measure_size(size, arguments) for size in map(int, arguments.sizes.split(","))]
        prediction = measure_prediction(arguments)
    model = cost_model(rows)
    report = {
        "setting": setting() | {"torch": torch.__version__, "kernel": arguments.kind},
        "gradient": rows,
        "cost_model": model,
        "prediction": prediction,
    }
    write_report(arguments.results or results_path("engine", arguments.quick), report)
    print(page(report))


if __name__ == "__main__":
    main()
