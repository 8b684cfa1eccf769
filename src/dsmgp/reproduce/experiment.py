"""One experiment of the paper: what is to be run, how, and how the results are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

__all__ = ["Experiment", "Job", "Plan", "Row", "listed", "table"]

#: What tells one run from the others.
Job = dict[str, Any]
#: One line of results: the job it came from, and figures.
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much is to be run.

    Attributes
    ----------
    quick : bool
        Few rows and few settings, for about 30 seconds: shows that all works, and says nothing about accuracy.
    seeds : int or None
        Reruns; as many as the experiment is meant to have if None.
    data : sequence of str or None
        Only these data sets.
    """

    quick: bool = False
    seeds: int | None = None
    data: Sequence[str] | None = None

    def reruns(self, full: int, quick: int = 1) -> int:
        """Reruns, where an experiment is meant to have ``full`` of them."""
        return self.seeds or (quick if self.quick else full)

    def chosen(self, full: Sequence[str], quick: Sequence[str]) -> list[str]:
        """Data sets, where an experiment is meant to have those of ``full``."""
        if self.data is not None:
            unknown = sorted(set(self.data) - set(full))
            if unknown:
                raise ValueError(
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
    keys : names of what tells jobs apart; a row of results has them too
    jobs : from a plan to what is to be run, in order
    run : a job, to rows of results
    page : rows to Markdown
    draw : rows to a figure
    says : one sentence on why figures differ from the paper's
    settings : what all jobs have in common, in the paper's symbols
    quick_settings : what quick runs have instead
    """

    name: str
    title: str
    keys: tuple[str, ...]
    jobs: Callable[[Plan], list[Job]]
    run: Callable[[Job], list[Row]]
    page: Callable[[list[Row]], str]
    draw: Callable[[list[Row]], Figure]
    says: str
    settings: Mapping[str, Any]
    quick_settings: Mapping[str, Any] = field(default_factory=dict)

    def settings_of(self, quick: bool) -> dict[str, Any]:
        return {**self.settings, **(self.quick_settings if quick else {})}


def listed(settings: Mapping[str, Any]) -> str:
    """Settings in one line.

    Examples
    --------
    >>> listed({"M": 100, "K_S": 4})
    'M = 100, K_S = 4'
    """
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: of each row the keys of ``columns``, under their titles.

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
