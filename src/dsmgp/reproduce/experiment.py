"""An experiment of the paper: its jobs, how one is run, and how results become a table and a figure.

Every experiment is a module with an ``EXPERIMENT``. Results are rows, plain dictionaries, of which tables and figures are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsmgp._util.errors import InputError

__all__ = [
    "Experiment",
    "Job",
    "Plan",
    "Row",
    "draw_band",
    "format_settings",
    "mean_of",
    "present",
    "select",
    "table",
]

#: Settings of one run, which tell it from the others.
Job = dict[str, Any]
#: One line of results: the job it came from, and what was measured.
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much of an experiment to run.

    Attributes
    ----------
    quick : bool
        Few rows and few settings, for about 30 seconds: shows that everything works, and says nothing about accuracy.
    seeds : int or None
        Number of repetitions; None for that of the experiment.
    data : sequence of str or None
        Only these data sets.
    """

    quick: bool = False
    seeds: int | None = None
    data: Sequence[str] | None = None

    def n_seeds(self, full: int, quick: int = 1) -> int:
        """Return the number of repetitions, ``full`` or ``quick`` unless the user set it."""
        return self.seeds or (quick if self.quick else full)

    def data_sets(self, full: Sequence[str], quick: Sequence[str]) -> list[str]:
        """Return the data sets to run, ``full`` or ``quick`` unless the user chose some of ``full``."""
        if self.data is not None:
            unknown = sorted(set(self.data) - set(full))
            if unknown:
                raise InputError(
                    f"expected data sets among {', '.join(full)}, got {', '.join(unknown)}"
                )
            return [name for name in full if name in self.data]
        return list(quick if self.quick else full)


@dataclass(frozen=True)
class Experiment:
    """How an experiment is run and shown.

    Attributes
    ----------
    name, title : str
    keys : tuple of str
        Fields that identify a job; rows of results have them too.
    jobs : callable
        Returns the jobs of a plan, in order.
    run : callable
        Runs a job and returns rows of results.
    page : callable
        Returns a Markdown table of rows.
    draw : callable
        Returns a figure of rows.
    remark : str
        Why results differ from the paper's.
    settings : mapping
        Settings of all jobs, in the paper's symbols.
    quick_settings : mapping
        Settings that quick runs have instead.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    jobs: Callable[[Plan], list[Job]]
    run: Callable[[Job], list[Row]]
    page: Callable[[list[Row]], str]
    draw: Callable[[list[Row]], Figure]
    remark: str
    settings: Mapping[str, Any]
    quick_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings_of(self, quick: bool) -> dict[str, Any]:
        return {**self.settings, **(self.quick_settings if quick else {})}


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as one line.

    Examples
    --------
    >>> format_settings({"M": 100, "K_S": 4})
    'M = 100, K_S = 4'
    """
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def select(rows: Iterable[Row], /, **fields: Any) -> list[Row]:
    """Return the rows with these values.

    Examples
    --------
    >>> select([{"data": "a", "seed": 0}, {"data": "b", "seed": 0}], data="b")
    [{'data': 'b', 'seed': 0}]
    """
    return [row for row in rows if all(row[key] == value for key, value in fields.items())]


def mean_of(rows: Iterable[Row], field: str) -> float:
    """Return the mean of a field over rows."""
    return float(np.mean([row[field] for row in rows]))


def present(names: Iterable[str], rows: Sequence[Row], field: str = "data") -> list[str]:
    """Return the names that rows have in a field, in the order of ``names``."""
    values = {row[field] for row in rows}
    return [name for name in names if name in values]


def draw_band(
    axes: Axes,
    x: Sequence[float],
    mean: Sequence[float],
    std: Sequence[float],
    colour: str,
    alpha: float = 0.3,
    label: str | None = None,
) -> None:
    """Draw a predictive mean with a band of two standard deviations."""
    centre, width = np.array(mean), 2.0 * np.array(std)
    axes.fill_between(x, centre - width, centre + width, color=colour, alpha=alpha)
    axes.plot(x, mean, color=colour, label=label)


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table: of each row the keys of ``columns``, under their titles.

    Examples
    --------
    >>> print(table({"m": "M", "rmse": "RMSE"}, [{"m": 10, "rmse": 0.51234}]))
    | M | RMSE |
    | --- | --- |
    | 10 | 0.5123 |
    """
    lines = [list(columns.values()), ["---"] * len(columns)]
    lines += [[_cell(row.get(key)) for key in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
