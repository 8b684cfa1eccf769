"""What a fit has found so far, in a file, so that one that was cut short goes on from there.

Everything in a fit follows from rows, settings and a seed, and what takes long is evaluating the evidence. So every evaluation is
written down, and a fit that starts over is told the old ones instead of computing them: it comes to the same result as one
that was never cut short, to the last bit.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp.archive import Archive, ModelFileError, read_archive, write_archive
from dsmgp.settings import Settings
from dsmgp.validation import check_count

__all__ = ["Checkpoint", "checkpointed"]

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]
#: Evaluations between two writings.
EVERY = 5
# Settings that do not change what is found.
NOT_FOUND_BY = ("executor", "memory_limit")


class Checkpoint:
    """Evaluations of one search after the other, in a file that is written whole or not at all.

    Parameters
    ----------
    path : Path
    fingerprint : str
        Of rows and settings: evaluations of another fit are refused.
    rng : numpy.random.Generator
        The fit's, as it is when it starts.
    seeded : bool
        Whether the user gave the seed. If not, that of the fit that was cut short is taken up.
    """

    def __init__(
        self, path: Path, fingerprint: str, rng: np.random.Generator, seeded: bool
    ) -> None:
        self.path, self.fingerprint = path, fingerprint
        # By search: thetas, and values with gradients.
        self._searches: list[list[tuple[Vector, float, Vector]]] = []
        self._state: Any = _plain(rng.bit_generator.state)
        self._n_searches = 0
        if path.exists():
            self._read(rng, seeded)
        self._write()

    @property
    def n_evaluations(self) -> int:
        """That are written down."""
        return sum(len(search) for search in self._searches)

    def remember(self, objective: Objective) -> Objective:
        """The objective of the next search, told from the file as far as it goes."""
        number, told = self._n_searches, 0
        self._n_searches += 1
        if number == len(self._searches):
            self._searches.append([])
        search = self._searches[number]

        def remembered(theta: Vector) -> tuple[float, Vector]:
            nonlocal told
            if told < len(search):
                known, value, gradient = search[told]
                if np.array_equal(known, theta):
                    told += 1
                    return value, gradient.copy()
                # Another machine, another last digit: from here on it is another search.
                del search[told:], self._searches[number + 1 :]
            value, gradient = objective(theta)
            search.append((theta.copy(), value, gradient.copy()))
            told += 1
            if self.n_evaluations % EVERY == 0:
                self._write()
            return value, gradient

        return remembered

    def _read(self, rng: np.random.Generator, seeded: bool) -> None:
        try:
            archive = read_archive(self.path)
            told = archive.entry("checkpoint", lambda v: isinstance(v, dict))
            searches = [
                _evaluations(archive, k)
                for k in range(check_count("n_searches", told["n_searches"], 0))
            ]
            fingerprint, state = told["fingerprint"], told["rng"]
            type(rng.bit_generator)().state = state  # or it is no state of such a generator
        except (ModelFileError, ValueError, KeyError, TypeError, OverflowError) as error:
            said = error if isinstance(error, ModelFileError) else "its header is wrong"
            raise ModelFileError(
                f"the checkpoint {self.path} cannot be read: {said}; give another path, or delete it if it is an old checkpoint"
            ) from error
        if fingerprint != self.fingerprint or (seeded and state != self._state):
            raise ValueError(
                f"the checkpoint {self.path} belongs to a fit of other rows, settings, seed or version; delete it to "
                "start over, or give another path"
            )
        self._state = rng.bit_generator.state = state
        self._searches = searches

    def _write(self) -> None:
        arrays = {}
        for k, search in enumerate(self._searches):
            width = len(search[0][0]) if search else 0
            arrays[f"{k}.theta"] = np.array([s[0] for s in search]).reshape(-1, width)
            arrays[f"{k}.value"] = np.array([s[1] for s in search], dtype=np.float64)
            arrays[f"{k}.gradient"] = np.array([s[2] for s in search]).reshape(-1, width)
        told = {
            "fingerprint": self.fingerprint,
            "rng": self._state,
            "n_searches": len(self._searches),
        }
        write_archive(self.path, {"checkpoint": told}, arrays)


@contextmanager
def checkpointed(
    path: str | os.PathLike[str] | None,
    arrays: Sequence[NDArray[Any]],
    settings: Settings,
    rng: np.random.Generator,
    seeded: bool,
) -> Iterator[Callable[[Objective], Objective]]:
    """What makes objectives remember, for the time of a fit of some arrays; the file goes when it has come to its end."""
    if path is None:
        yield lambda objective: objective
        return
    # Through links: what they point to is removed at the end.
    checkpoint = Checkpoint(
        Path(os.path.realpath(path)), _fingerprint(arrays, settings), rng, seeded
    )
    yield checkpoint.remember
    checkpoint.path.unlink(missing_ok=True)


def _evaluations(archive: Archive, number: int) -> list[tuple[Vector, float, Vector]]:
    """Those of one search: thetas, values and gradients."""
    thetas = archive.array(f"{number}.theta", np.float64, None, None)
    values = archive.array(f"{number}.value", np.float64, len(thetas), finite=False)
    gradients = archive.array(f"{number}.gradient", np.float64, *thetas.shape, finite=False)
    return list(zip(thetas, values.tolist(), gradients, strict=True))


def _plain(state: Any) -> Any:
    """The state of a generator as JSON has it: some hold arrays."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


def _fingerprint(arrays: Sequence[NDArray[Any]], settings: Settings) -> str:
    found = hashlib.sha256(version("dsmgp").encode())
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    for one in fields(settings):
        if one.name not in NOT_FOUND_BY:
            value = getattr(settings, one.name)
            found.update(one.name.encode())
            simple = value is None or isinstance(value, (str, int, float, bool, list, tuple))
            # Kernels and trees have no other text that says all of them.
            found.update(repr(value).encode() if simple else pickle.dumps(value))
    return found.hexdigest()
