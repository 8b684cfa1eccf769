"""Checkpoints: evaluations of the evidence in a file, so that an interrupted fit can resume.

A fit is determined by its rows, configuration and seed, and its time goes into evaluating the evidence. So every evaluation is recorded,
and a fit that starts again reads the recorded ones instead of computing them: its result is the same, to the last bit, as that of a fit
that was never interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.archive import Archive, ModelFileError, read_archive, write_archive
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_count
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.learning.optimize import Objective, Vector
from dsmgp.fitting.rows.fingerprint import fingerprint

__all__ = ["Checkpoint", "checkpointed"]

#: Theta, value and gradient.
Evaluation = tuple[Vector, float, Vector]
# The file is written after this many evaluations.
EVERY = 5


class Checkpoint:
    """Evaluations of one search after the other, in a file that is written completely or not at all.

    Parameters
    ----------
    path : Path
    identity : str
        Fingerprint of rows and configuration: the checkpoint of another fit is refused.
    rng : numpy.random.Generator
        That of the fit, before anything is drawn.
    seeded : bool
        Whether the user gave the seed. If not, the state of the interrupted fit's generator is restored.
    """

    def __init__(self, path: Path, identity: str, rng: np.random.Generator, seeded: bool) -> None:
        self.path, self.identity = path, identity
        self._searches: list[list[Evaluation]] = []
        self._rng_state: Any = _to_json(rng.bit_generator.state)
        self._n_searches = 0  # of this process
        if path.exists():
            self._read(rng, seeded)
        self._write()

    @property
    def n_evaluations(self) -> int:
        """Number of recorded evaluations."""
        return sum(len(search) for search in self._searches)

    def recorded(self, objective: Objective) -> Objective:
        """Wrap the objective of the next search: evaluations on record are returned, others are computed and recorded."""
        number, position = self._n_searches, 0
        self._n_searches += 1
        if number == len(self._searches):
            self._searches.append([])
        search = self._searches[number]

        def evaluate(theta: Vector) -> tuple[float, Vector]:
            nonlocal position
            if position < len(search):
                recorded_theta, value, gradient = search[position]
                if np.array_equal(recorded_theta, theta):
                    position += 1
                    return value, gradient.copy()
                # Another machine may differ in the last digit: from here on it is another search.
                del search[position:], self._searches[number + 1 :]
            value, gradient = objective(theta)
            search.append((theta.copy(), value, gradient.copy()))
            position += 1
            if self.n_evaluations % EVERY == 0:
                self._write()
            return value, gradient

        return evaluate

    def _read(self, rng: np.random.Generator, seeded: bool) -> None:
        try:
            archive = read_archive(self.path)
            header = archive.header["checkpoint"]
            n_searches = check_count("n_searches", header["n_searches"], 0)
            searches = [_read_search(archive, k) for k in range(n_searches)]
            identity, rng_state = header["fingerprint"], header["rng"]
            written_by = header.get("version", "0.1.0 or earlier")
            # Raises unless it is a state of such a generator.
            type(rng.bit_generator)().state = rng_state
        except (ModelFileError, ValueError, KeyError, TypeError, OverflowError) as error:
            reason = error if isinstance(error, ModelFileError) else "its header is wrong"
            raise ModelFileError(
                f"the checkpoint {self.path} cannot be read: {reason}; give another path, or delete it if it is an old checkpoint"
            ) from error
        if written_by != version("dsmgp"):
            # Another version may evaluate the evidence at other places.
            raise InputError(
                f"the checkpoint {self.path} was written by dsmgp {written_by}, this is {version('dsmgp')}; go on with that version, or delete it to "
                "start over"
            )
        if identity != self.identity or (seeded and rng_state != self._rng_state):
            raise InputError(
                f"the checkpoint {self.path} belongs to a fit of other rows, settings or seed; delete it to "
                "start over, or give another path"
            )
        self._rng_state = rng.bit_generator.state = rng_state
        self._searches = searches

    def _write(self) -> None:
        arrays = {}
        for k, search in enumerate(self._searches):
            width = len(search[0][0]) if search else 0
            arrays[f"{k}.theta"] = np.array([theta for theta, _, _ in search]).reshape(-1, width)
            arrays[f"{k}.value"] = np.array([value for _, value, _ in search], dtype=np.float64)
            arrays[f"{k}.gradient"] = np.array([by for _, _, by in search]).reshape(-1, width)
        header = {
            "version": version("dsmgp"),
            "fingerprint": self.identity,
            "rng": self._rng_state,
            "n_searches": len(self._searches),
        }
        write_archive(self.path, {"checkpoint": header}, arrays)


@contextmanager
def checkpointed(
    arrays: Sequence[NDArray[Any]], config: FitConfig, rng: np.random.Generator
) -> Iterator[Callable[[Objective], Objective]]:
    """Yield what wraps the objectives of a fit so that their evaluations are recorded; delete the file when the fit is done.

    Parameters
    ----------
    arrays : sequence of ndarray
        The training data, or what distinguishes it from other data.
    config : FitConfig
        Its ``checkpoint`` is the file; None records nothing.
    rng : numpy.random.Generator
        That of the fit, before anything is drawn.
    """
    if config.checkpoint is None:
        yield lambda objective: objective
        return
    # Links are resolved: the file itself is deleted in the end.
    path, seeded = Path(os.path.realpath(config.checkpoint)), config.random_state is not None
    checkpoint = Checkpoint(path, fingerprint(arrays, config), rng, seeded)
    yield checkpoint.recorded
    checkpoint.path.unlink(missing_ok=True)


def _read_search(archive: Archive, number: int) -> list[Evaluation]:
    """Read the evaluations of one search."""
    thetas = archive.array(f"{number}.theta", np.float64, None, None)
    values = archive.array(f"{number}.value", np.float64, len(thetas), finite=False)
    gradients = archive.array(f"{number}.gradient", np.float64, *thetas.shape, finite=False)
    return list(zip(thetas, values.tolist(), gradients, strict=True))


def _to_json(state: Any) -> Any:
    """Convert the state of a generator to what JSON can hold: some states contain arrays."""
    if isinstance(state, dict):
        return {name: _to_json(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state
