"""Running experiments: job by job, from where it was left, with figure, table and results in one folder."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from dsmgp.reproduce import (
    approximation,
    contour,
    illustration,
    motorcycle,
    noise,
    results,
    sharing,
    sizes,
    timings,
)
from dsmgp.reproduce.data import available
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, listed
from dsmgp.reproduce.runs import Runs, origin, setting
from dsmgp.validation import check_choice, check_count

__all__ = ["EXPERIMENTS", "NAMES", "reproduce", "reproduce_all", "written"]

logger = logging.getLogger("dsmgp")
Progress = Callable[[str], None]
#: By name, the quickest to run first; what needs another part of the library that may be missing comes last.
EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        illustration, sharing, motorcycle, sizes, timings, approximation, contour, results, noise,
    )
}  # fmt: skip
NAMES = tuple(EXPERIMENTS)
# Under what quick runs write, beside the paper's figures of the real thing.
QUICK = "Quick form: shows that all works, says nothing about accuracy or speed."


def reproduce(
    name: str,
    out: str | Path = "out/reproduction",
    quick: bool = False,
    seeds: int | None = None,
    data: Sequence[str] | None = None,
    again: bool = False,
    progress: Progress = logger.info,
) -> list[Path]:
    """Run one of the paper's experiments, and write what it shows.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    out : path
        Folder for NAME.json (results, row by row), NAME.md, NAME.png and NAME.svg. Jobs whose rows are there
        already are not run again. Quick runs have a folder of their own inside.
    quick : bool
        A small form of the experiment, for about 30 seconds.
    seeds : int, optional
        Reruns, if not as many as the experiment is meant to have.
    data : sequence of str, optional
        Only these data sets, where an experiment has several.
    again : bool
        Run again what is there already.
    progress : callable
        Told in a line what was run; logs if left out.

    Returns
    -------
    paths of what was written

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = reproduce("figure-illustration", folder, quick=True)
    ...     print(*(path.name for path in paths))
    figure-illustration.json figure-illustration.md figure-illustration.png figure-illustration.svg
    """
    check_choice("name", name, NAMES)
    plan = Plan(quick, check_count("seeds", seeds, 1, True), data)
    experiment, folder = EXPERIMENTS[name], Path(out) / "quick" if quick else Path(out)
    runs = Runs(folder / f"{name}.json", experiment.keys)
    jobs = _possible(experiment, experiment.jobs(plan), progress)
    if again:
        runs.forget(jobs)
    due = [job for job in jobs if runs.is_due(job)]
    progress(f"{name}: {len(due)} of {len(jobs)} to run")
    folder.mkdir(parents=True, exist_ok=True)  # now, not when the first job is done
    described = {"settings": experiment.settings_of(quick), **setting()}
    for number, job in enumerate(due, 1):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of rivals at small noise; what matters is in the scores
            rows = experiment.run(job)
        runs.add([{**row, **described} for row in rows])
        seconds = time.perf_counter() - start
        progress(f"{name} {number}/{len(due)}: {_said(job)} in {seconds:.1f} s")
    if not runs.rows:
        raise ValueError(f"{name} has no results; set DSMGP_DATA to the folder of the data")
    return written(experiment, runs.rows, folder)


def reproduce_all(
    out: str | Path = "out/reproduction",
    quick: bool = False,
    seeds: int | None = None,
    again: bool = False,
    progress: Progress = logger.info,
) -> list[Path]:
    """Run all experiments. One that cannot be run, for want of data or of a method, is named and left out."""
    paths: list[Path] = []
    Path(out).mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        try:
            paths += reproduce(name, out, quick, seeds, again=again, progress=progress)
        except (FileNotFoundError, NotImplementedError) as error:
            progress(f"{name} is left out: {error}")
    return paths


def _possible(experiment: Experiment, jobs: list[Job], progress: Progress) -> list[Job]:
    """Without jobs whose data are not there, unless none is left: then the first one says what is missing."""
    missing = {
        job["data"]
        for job in jobs
        if job.get("data") not in (None, "synthetic") and not available(job["data"])
    }
    for name in sorted(missing):
        progress(f"{experiment.name}: {name} is left out, its file is not in DSMGP_DATA")
    return [job for job in jobs if job.get("data") not in missing] or jobs


def _said(job: Job) -> str:
    return ", ".join(f"{key} {value}" for key, value in job.items() if key != "quick")


def written(experiment: Experiment, rows: list[Row], folder: Path) -> list[Path]:
    """Table and figure of results that are there."""
    name, quick = experiment.name, any(row.get("quick") for row in rows)
    used = f"{listed(experiment.settings_of(quick))}; {origin(rows)}"
    parts = [f"# {experiment.title}", f"*{used}*", experiment.page(rows), experiment.says]
    if quick:
        parts.insert(1, QUICK)
    paths = [folder / f"{name}.{kind}" for kind in ("json", "md", "png", "svg")]
    paths[1].write_text("\n\n".join(parts) + "\n")
    figure = experiment.draw(rows)
    if quick:
        figure.supxlabel(QUICK, fontsize=7, color="0.4")
    for path in paths[2:]:
        figure.savefig(path, dpi=130, metadata={"Title": experiment.title, "Description": used})
    return paths
