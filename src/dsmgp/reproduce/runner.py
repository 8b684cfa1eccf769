"""Run experiments job by job, continue interrupted ones, and write results, table and figure to a folder."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_choice, check_count
from dsmgp.reproduce.data import available
from dsmgp.reproduce.experiment import Experiment, Job, Plan, Row, format_settings
from dsmgp.reproduce.experiments import (
    approximation,
    contour,
    illustration,
    motorcycle,
    noise,
    objective,
    results,
    sharing,
    sizes,
    timings,
)
from dsmgp.reproduce.runs import Runs, describe_origin, provenance

__all__ = ["EXPERIMENTS", "NAMES", "reproduce", "reproduce_all", "write_report"]

logger = logging.getLogger("dsmgp")
Progress = Callable[[str], None]
#: By name, roughly the quickest first.
EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        illustration, sharing, motorcycle, objective, sizes, timings, approximation, contour, results, noise,
    )
}  # fmt: skip
NAMES = tuple(EXPERIMENTS)
# Shown with the results of quick runs.
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
    """Run one of the paper's experiments, and write results, a table and a figure.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.
    out : path
        Folder for NAME.json (results, row by row), NAME.md, NAME.png and NAME.svg. Jobs that have results there
        are not run again. Quick runs have a folder of their own inside.
    quick : bool
        A small form of the experiment, for about 30 seconds.
    seeds : int, optional
        Number of repetitions; by default that of the experiment.
    data : sequence of str, optional
        Only these data sets, where an experiment has several.
    again : bool
        Run jobs again that have results.
    progress : callable
        Called with a line of text after every job; by default the text is logged.

    Returns
    -------
    list of Path
        The files written.

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
    jobs = _with_data(experiment, experiment.jobs(plan), progress)
    if again:
        runs.forget(jobs)
    due = [job for job in jobs if runs.is_due(job)]
    progress(f"{name}: {len(due)} of {len(jobs)} to run")
    folder.mkdir(parents=True, exist_ok=True)  # fail before the first job, not after it
    origin = {"settings": experiment.settings_of(quick), **provenance()}
    for number, job in enumerate(due, 1):
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # baselines warn of small noise; the scores show it
            rows = experiment.run(job)
        runs.add([{**row, **origin} for row in rows])
        seconds = time.perf_counter() - start
        progress(f"{name} {number}/{len(due)}: {_describe(job)} in {seconds:.1f} s")
    if not runs.rows:
        raise InputError(f"{name} has no results; set DSMGP_DATA to the folder of the data")
    return write_report(experiment, runs.rows, folder)


def reproduce_all(
    out: str | Path = "out/reproduction",
    quick: bool = False,
    seeds: int | None = None,
    again: bool = False,
    progress: Progress = logger.info,
) -> list[Path]:
    """Run all experiments; those without data, or without a package that they need, are reported and left out."""
    paths: list[Path] = []
    Path(out).mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        try:
            paths += reproduce(name, out, quick, seeds, again=again, progress=progress)
        except (FileNotFoundError, ImportError) as error:
            progress(f"{name} is left out: {error}")
    return paths


def _with_data(experiment: Experiment, jobs: list[Job], progress: Progress) -> list[Job]:
    """Leave out jobs without data, unless none is left: the first one then raises an error that says what is missing."""
    missing = {
        job["data"]
        for job in jobs
        if job.get("data") not in (None, "synthetic") and not available(job["data"])
    }
    for name in sorted(missing):
        progress(f"{experiment.name}: {name} is left out, its file is not in DSMGP_DATA")
    return [job for job in jobs if job.get("data") not in missing] or jobs


def _describe(job: Job) -> str:
    return ", ".join(f"{key} {value}" for key, value in job.items() if key != "quick")


def write_report(experiment: Experiment, rows: list[Row], folder: Path) -> list[Path]:
    """Write the table and the figure of results; return the paths of all files."""
    name, quick = experiment.name, any(row.get("quick") for row in rows)
    used = f"{format_settings(experiment.settings_of(quick))}; {describe_origin(rows)}"
    parts = [f"# {experiment.title}", f"*{used}*", experiment.page(rows), experiment.remark]
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
