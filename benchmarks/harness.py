"""What all benchmarks share: their setting, results on disk, tables, data, timing, and runs in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp import Mixture, scores
from dsmgp.datasets import load

HERE = Path(__file__).parent
Array = np.ndarray
Split = tuple[Array, Array, Array, Array]
Ask = Callable[[Any], dict]


def on_gpu() -> bool:
    """Whether torch is installed and has a GPU; asked of torch, as other commits of the package are measured too."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def n_cores() -> int:
    """The cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def synchronise() -> None:
    """Wait for what the GPU was told to do."""
    if on_gpu():
        import torch

        torch.cuda.synchronize()


def setting() -> dict[str, str]:
    """Commit and machine that figures came from."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    # A machine that was sent the files alone is told the commit.
    commit = os.environ.get("DSMGP_COMMIT") or subprocess.check_output(command, text=True, cwd=HERE)
    return {"commit": commit.strip(), "machine": f"{platform.machine()}, {_device()}"}


def _device() -> str:
    if not on_gpu():
        return f"{n_cores()} cores"
    import torch

    return torch.cuda.get_device_name()


# Results on disk


def results_path(name: str, quick: bool) -> Path:
    """Where results go unless told: each kind of device has a file, and quick runs never touch either."""
    folder = HERE.parent / "out" / "benchmarks" if quick else HERE / "results"
    return folder / f"{name}{'-gpu' if on_gpu() else ''}.json"


class Runs:
    """One row per run in a JSON file, told apart by ``keys``. What is there already need not be run again.

    With ``again`` only what this process ran need not.
    """

    def __init__(self, path: Path, keys: Sequence[str], again: bool = False) -> None:
        self.path, self.keys, self.again = path, keys, again
        self.rows: list[dict] = json.loads(path.read_text()) if path.exists() else []
        self._fresh: set[tuple] = set()

    def find(self, **key: object) -> dict | None:
        """The row of a run, if there is one."""
        wanted = self._key(key)
        return next((row for row in self.rows if self._key(row) == wanted), None)

    def is_due(self, **key: object) -> bool:
        """Whether a run is yet to be made."""
        if self.again:
            return self._key(key) not in self._fresh
        return self.find(**key) is None

    def add(self, new: Sequence[dict]) -> None:
        """Keep rows, in the place of those of the same runs, and write all."""
        made = {self._key(row) for row in new}
        self._fresh |= made
        self.rows = [row for row in self.rows if self._key(row) not in made] + list(new)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("[\n" + ",\n".join(map(json.dumps, self.rows)) + "\n]\n")

    def _key(self, row: Mapping) -> tuple:
        return tuple(row.get(k) for k in self.keys)


def write_report(path: Path, report: Mapping) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def table(columns: Mapping[str, str], rows: Sequence[Mapping]) -> str:
    """Markdown: of each row the keys of ``columns``, under their titles."""
    lines = [list(columns.values()), ["---"] * len(columns)]
    lines += [[_cell(row.get(key)) for key in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# Data and scores


def standardised(name: str, seed: int) -> Split:
    """A data set's split with every column in units of the training rows' standard deviation."""
    return standardise(*load(name).split(seed))


def standardise(X: Array, Y: Array, X_test: Array, Y_test: Array) -> Split:
    def unit(A: Array) -> Array:
        scale = A.std(axis=0)
        return np.where(scale == 0, 1.0, scale)

    (mx, sx), (my, sy) = (X.mean(axis=0), unit(X)), (Y.mean(axis=0), unit(Y))
    return (X - mx) / sx, (Y - my) / sy, (X_test - mx) / sx, (Y_test - my) / sy


def generated(n_rows: int, n_test: int, n_outputs: int = 1, seed: int = 0) -> Split:
    """Rows of 8 inputs: smooth, faster in some places than in others, an input without use, noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(n_rows + n_test, 8))
    f = (
        np.sin(4.0 * X[:, 0] * np.exp(X[:, 1]))
        + np.tanh(6.0 * (X[:, 2] + 0.5 * X[:, 3]))
        + np.cos(2.0 * X[:, 4] + X[:, 5] ** 2)
        + X[:, 5] * X[:, 6]
    )
    Y = np.column_stack([f + k * X[:, 4] for k in range(n_outputs)])
    Y += 0.1 * rng.normal(size=Y.shape)
    return X[:n_rows], Y[:n_rows], X[n_rows:], Y[n_rows:]


def brief_score(law: Mixture, Y: Array) -> dict[str, float]:
    """What costs next to nothing; of a point prediction the error of the mean only."""
    found = {"rmse": scores.rmse(Y, law.mean)}
    if not np.isnan(law.std).all():
        found["nlpd"] = scores.nlpd(Y, law)
    return {key: round(value, 5) for key, value in found.items()}


def timed_scores(
    fit: Callable, X: Array, Y: Array, X_test: Array, Y_test: Array
) -> dict[str, float]:
    """Fit a method of ``peers`` and predict; seconds of both, scores, and leave-one-out scores where the method has some."""
    start = time.perf_counter()
    law, note = fit(X, Y, X_test, 0)
    seconds = {"seconds": round(time.perf_counter() - start, 2)}
    kept = {key: round(note[key], 5) for key in ("loo", "loo_new_inputs") if key in note}
    return seconds | score(law, Y_test) | kept


def score(law: Mixture, Y: Array) -> dict[str, float]:
    """All scores; of a point prediction, which has no density, those of the mean only."""
    point = {"mae": scores.mae(Y, law.mean), "rmse": scores.rmse(Y, law.mean)}
    if np.isnan(law.std).all():
        return {key: round(value, 5) for key, value in point.items()}
    found = {
        **point,
        "nlpd": scores.nlpd(Y, law),
        "gaussian_nlpd": scores.gaussian_nlpd(Y, law),
        "joint_nlpd": scores.joint_nlpd(Y, law),
        "crps": scores.crps(Y, law),
        "coverage90": scores.coverage(Y, law, 0.9),
        "se_nlpd": float(np.std(law.logpdf(Y).reshape(len(Y), -1).sum(1)) / np.sqrt(len(Y))),
    }
    return {key: round(value, 5) for key, value in found.items()}


# Time and memory


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    seconds: float,
    before: Callable[[], object] = lambda: None,
    least: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every variant in every round. In turn, so that a busy moment hits all alike; the first round warms up."""
    spent: dict[str, list[float]] = {name: [] for name in variants}
    end = None
    while end is None or time.perf_counter() < end or len(next(iter(spent.values()))) < least:
        for name, run in variants.items():
            before()
            synchronise()
            start = clock()
            run()
            synchronise()
            if end is not None:
                spent[name].append(clock() - start)
        end = end or time.perf_counter() + seconds
    return spent


def now() -> tuple[float, float]:
    """Seconds of the clock and of the processor, all threads of this process together."""
    return time.perf_counter(), time.process_time()


def seconds_of(start: tuple[float, float], end: tuple[float, float], what: str) -> dict[str, float]:
    """Seconds between two times of :func:`now`, under the names that rows of results have for them."""
    clock, processor = (b - a for a, b in zip(start, end, strict=True))
    return {f"{what}_seconds": clock, f"{what}_processor": processor}


def peak_memory() -> float:
    """The most resident memory this process has had, in GB."""
    unit = 1e9 if sys.platform == "darwin" else 1e6  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def run_apart(script: str, job: Mapping, limit: float) -> dict:
    """What ``python script --job {...}`` prints as its last line, or why it did not.

    A process of its own: its peak of memory, threads and caches are its own, and it can be stopped.
    """
    command = [sys.executable, script, "--job", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"over {limit:.0f} s"}
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return {"failed": said[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


# Two commits side by side


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The sources of another commit, in a temporary folder; or a folder of sources as it is."""
    if Path(commit).is_dir():
        yield Path(commit)
        return
    git = ["git", "-C", str(HERE)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)


def serve(answer: Ask) -> None:
    """Answer the tasks on standard input, a line of JSON each, on standard output: what ``script --serve`` does."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


@contextmanager
def _server(script: str, source: Path) -> Iterator[Ask]:
    """A process of ``script --serve`` with the package from ``source``, and a function that gives it a task."""
    process = subprocess.Popen(
        [sys.executable, script, "--serve"], env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(task: Any) -> dict:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{source}: the process ended during {task}")
        return json.loads(answer)

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait()


@contextmanager
def two_commits(script: str, against: str) -> Iterator[tuple[Ask, Ask]]:
    """Processes of ``script --serve`` at another commit and at this one."""
    with (
        checked_out(against) as source,
        _server(script, source) as old,
        _server(script, HERE.parent / "src") as new,
    ):
        yield old, new


def in_turn(old: Ask, new: Ask, task: Any, rounds: int) -> list[tuple[dict, dict]]:
    """Answers of both in every round. In turn, so that a busy moment hits both alike; the first round warms up."""
    return [(old(task), new(task)) for _ in range(rounds + 1)][1:]


def new_over_old(pairs: Sequence[tuple[dict, dict]], key: str) -> dict[str, float]:
    """Median, lowest and highest ratio of a value over rounds, and the median of both commits."""
    ratios = [after[key] / before[key] for before, after in pairs]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "low": round(min(ratios), 3),
        "high": round(max(ratios), 3),
        "old": round(statistics.median(before[key] for before, _ in pairs), 4),
        "new": round(statistics.median(after[key] for _, after in pairs), 4),
    }
