"""Results on disk, row by row, so that jobs need not be run twice, with the version and machine they come from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dsmgp
from dsmgp._util.errors import InputError
from dsmgp._util.machine import has_cuda
from dsmgp.linalg.threads import n_threads

__all__ = ["Runs", "describe_origin", "load_average", "provenance"]


class Runs:
    """Rows of results in a JSON file.

    The file is replaced as a whole after every job, so that an interrupted run leaves it complete.

    Parameters
    ----------
    path : Path
    keys : sequence of str
        Fields that identify a job; all rows of one job have the same.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path, self.keys = path, keys
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            try:
                self.rows = json.loads(path.read_text())
            except json.JSONDecodeError as error:
                raise InputError(
                    f"{path} holds no results ({error}); remove it to run the experiment again"
                ) from None
            if not isinstance(self.rows, list) or not all(isinstance(r, dict) for r in self.rows):
                raise InputError(
                    f"{path} holds no rows of results; remove it to run the experiment again"
                )

    def is_due(self, job: Mapping[str, Any]) -> bool:
        """Whether the file has no results of a job."""
        wanted = self._key(job)
        return all(self._key(row) != wanted for row in self.rows)

    def add(self, new: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, and write the file."""
        self.rows += [dict(row) for row in new]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".part")
        partial.write_text("[\n" + ",\n".join(map(json.dumps, self.rows)) + "\n]\n")
        partial.replace(self.path)

    def forget(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Drop the rows of jobs, to run them again."""
        forgotten = {self._key(job) for job in jobs}
        self.rows = [row for row in self.rows if self._key(row) not in forgotten]

    def _key(self, row: Mapping[str, Any]) -> str:
        return json.dumps([row.get(name) for name in self.keys])


def provenance() -> dict[str, str]:
    """Return the version, the commit and the machine, which are stored with every row."""
    where = Path(__file__).parent
    commit = os.environ.get("DSMGP_COMMIT", "")
    if not commit:
        command = ["git", "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=where)
        commit = done.stdout.strip() if done.returncode == 0 else "unknown"
    machine = f"{platform.machine()}, {_device()}"
    return {"version": dsmgp.__version__, "commit": commit, "machine": machine}


def _device() -> str:
    """Return the name of the GPU, or the number of cores."""
    if not has_cuda():
        return f"{n_threads()} cores"
    import torch

    return torch.cuda.get_device_name()


def load_average() -> float:
    """Return the machine's load in the last minute: above the number of cores, times mean little."""
    return round(os.getloadavg()[0], 1)


def describe_origin(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the commits, machines and loads of rows, as one line."""
    commits = dict.fromkeys(str(row["commit"]) for row in rows if "commit" in row)
    machines = dict.fromkeys(str(row["machine"]) for row in rows if "machine" in row)
    busy = [float(row["load"]) for row in rows if "load" in row]
    loads = f"; load {min(busy):g} to {max(busy):g} while times were taken" if busy else ""
    return f"commit {', '.join(commits)}; {'; '.join(machines)}{loads}"
