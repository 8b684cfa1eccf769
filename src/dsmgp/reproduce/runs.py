"""Results on disk, row by row, so that what was run need not be run again; and where they came from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import dsmgp

__all__ = ["Runs", "load", "origin", "setting"]


class Runs:
    """Rows in a JSON file; those of one job have the same ``keys``.

    The file is written after every job, by way of another name, so that a run that is stopped leaves it whole.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path, self.keys = path, keys
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            try:
                self.rows = json.loads(path.read_text())
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path} holds no results ({error}); remove it, and it is made again"
                ) from None
            if not isinstance(self.rows, list) or not all(isinstance(r, dict) for r in self.rows):
                raise ValueError(
                    f"{path} holds no rows of results; remove it, and it is made again"
                )

    def is_due(self, job: Mapping[str, Any]) -> bool:
        """Whether a job is yet to be run."""
        wanted = self._key(job)
        return all(self._key(row) != wanted for row in self.rows)

    def add(self, new: Sequence[Mapping[str, Any]]) -> None:
        self.rows += [dict(row) for row in new]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text("[\n" + ",\n".join(map(json.dumps, self.rows)) + "\n]\n")
        beside.replace(self.path)

    def forget(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Drop the rows of some jobs, to run them again."""
        gone = {self._key(job) for job in jobs}
        self.rows = [row for row in self.rows if self._key(row) not in gone]

    def _key(self, row: Mapping[str, Any]) -> str:
        return json.dumps([row.get(name) for name in self.keys])


def setting() -> dict[str, str]:
    """Version, commit and machine that figures come from."""
    where = Path(__file__).parent
    commit = os.environ.get("DSMGP_COMMIT", "")
    if not commit:
        command = ["git", "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=where)
        commit = done.stdout.strip() if done.returncode == 0 else "unknown"
    cores = f"{torch.get_num_threads()} cores"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cores
    machine = f"{platform.machine()}, {device}"
    return {"version": dsmgp.__version__, "commit": commit, "machine": machine}


def load() -> float:
    """Work that waits for the machine's cores, the mean of the last minute: above their number times are of little worth."""
    return round(os.getloadavg()[0], 1)


def origin(rows: Sequence[Mapping[str, Any]]) -> str:
    """Commits and machines of some rows, in words."""
    commits = dict.fromkeys(str(row["commit"]) for row in rows if "commit" in row)
    machines = dict.fromkeys(str(row["machine"]) for row in rows if "machine" in row)
    busy = [float(row["load"]) for row in rows if "load" in row]
    loads = f"; load {min(busy):g} to {max(busy):g} while times were taken" if busy else ""
    return f"commit {', '.join(commits)}; {'; '.join(machines)}{loads}"
