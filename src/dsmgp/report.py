"""A page about a fitted model and how it does on rows: one HTML file with its pictures inside. Needs ``dsmgp[plots]``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsmgp import __version__, plots
from dsmgp.archive import new_beside, place_of
from dsmgp.canvas import levels_of, names_of
from dsmgp.mixture import Mixture
from dsmgp.page import STYLE, escaped, number, pair, picture, table
from dsmgp.regressor import DSMGPRegressor
from dsmgp.relevance import relevance
from dsmgp.report_structure import MAX_DRAWN, cuts_or_changes, told
from dsmgp.scores import joint_nlpd, score_each
from dsmgp.timeline import day_text

__all__ = ["report_html", "write_report"]

Array = NDArray[np.float64]
# Rows of the table of least sure predictions.
MAX_UNSURE = 10
# Rows of which a twentieth can be told.
LEAST_RANKED = 20
# Below it standard deviations are called equal; above the next they are called wide.
EQUALLY_SURE, WIDE = 1.05, 1.5


def write_report(
    path: str | Path,
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    targets: Sequence[str] = ("y",),
    title: str = "",
) -> None:
    """Write :func:`report_html` to a file, whole or not at all.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, X[:, 0])
    >>> page = getfixture("tmp_path") / "report.html"
    >>> write_report(page, model, X, X[:, 0])
    >>> page.read_text().startswith("<!doctype html>")
    True
    """
    content, target = report_html(model, X, y, targets, title), place_of(path)
    temporary = new_beside(target)
    try:
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def report_html(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    targets: Sequence[str] = ("y",),
    title: str = "",
) -> str:
    """A page that works offline: data, model in words, scores, calibration, relevance, where it is unsure, splits, settings.

    Parameters
    ----------
    model : DSMGPRegressor
        Fitted.
    X, y : array-like
        Rows on which it is judged, best ones that it was not fitted to.
    targets : sequence of str
        Names of the outputs.
    title : str
        Heading of the page.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, X[:, 0])
    >>> "<title>A line</title>" in report_html(model, X, X[:, 0], title="A line")
    True
    """
    return _Page(model, X, y, targets, title).html()


class _Page:
    """What the sections of a page share."""

    def __init__(
        self,
        model: DSMGPRegressor,
        X: ArrayLike,
        y: ArrayLike,
        targets: Sequence[str],
        title: str,
    ) -> None:
        self.model, self.X, self.targets = model, X, list(targets)
        self.rows = model._test_rows(X)  # dates as days
        observed = np.asarray(y, dtype=np.float64).reshape(len(self.rows), -1)
        if observed.shape[1] != len(self.targets):
            raise ValueError(
                f"expected a name for each of {observed.shape[1]} outputs, got {self.targets}"
            )
        self.observed = observed
        self.y = observed[:, 0] if model._squeeze else observed
        self.law: Mixture = model.predict_dist(X)
        self.names = names_of(model)
        self.title = title or f"Report on {', '.join(self.targets)}"
        outputs = model._rows[1]
        self.scores = score_each(self.y, self.law, outputs.mean(axis=0))
        self.dates = model._shown_dates
        # Outputs of different units are as unsure as their standard deviations are large beside what was seen in training.
        usual = outputs.std(axis=0)
        std = self.law.std.reshape(len(self.rows), -1)
        self.unsureness: Array = (std / np.where(usual > 0, usual, 1.0)).mean(axis=1)

    def html(self) -> str:
        structure = cuts_or_changes(self.model, self.names, self.X, self.y)
        sections: list[tuple[str, str, Callable[[], str]]] = [
            ("data", "Data", self.data),
            ("words", "The model in words", self.words),
            ("scores", "Scores", self.score_section),
            ("calibration", "Calibration", self.calibration),
            ("relevance", "What matters", self.relevance),
            ("unsure", "Where predictions are unsure", self.unsure),
            ("splits", *structure),
            ("settings", "Settings", self.settings),
        ]
        with mpl.rc_context(
            {"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False}
        ):
            body = "".join(
                f'<section id="{key}"><h2>{heading}</h2>{make()}</section>'
                for key, heading, make in sections
            )
        links = "".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in sections)
        n = len(self.rows)
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escaped(self.title)}</title><style>{STYLE}</style></head><body>"
            f"<h1>{escaped(self.title)}</h1>"
            f'<p class="lead">{n:,} rows, predicted by a deep structured mixture of Gaussian processes '
            f"(dsmgp {escaped(__version__)}).</p><nav>{links}</nav>{body}</body></html>\n"
        )

    def data(self) -> str:
        train, outputs = self.model._rows
        ranges = (np.min, np.median, np.max)
        lines = [
            [name, *(self.shown(k, f(rows[:, k])) for rows in (train, self.rows) for f in ranges)]
            for k, name in enumerate(self.names)
        ]
        lines += [
            [name, *(number(f(rows[:, k])) for rows in (outputs, self.observed) for f in ranges)]
            for k, name in enumerate(self.targets)
        ]
        heads = ["column", "least", "median", "most", "least here", "median here", "most here"]
        return (
            f"<p>The model was fitted to {_counted(len(train), 'row')} with {_counted(len(self.names), 'input')}. It is judged here on "
            f"{_counted(len(self.rows), 'row')}. {self.extrapolation()}</p>" + table(heads, lines)
        )

    def extrapolation(self) -> str:
        train = self.model._rows[0]
        outside = ((self.rows < train.min(axis=0)) | (self.rows > train.max(axis=0))).any(axis=1)
        if not outside.any():
            return "All of them lie within the range of the training rows."
        text = (
            f"{outside.mean():.1%} of them lie outside the range of the training rows in some input: there the model "
            "extrapolates."
        )
        inside = float(np.median(self.unsureness[~outside])) if not outside.all() else 0.0
        if inside > 0:
            ratio = float(np.median(self.unsureness[outside])) / inside
            text += (
                f" Predictions there have {ratio:.2g} times the standard deviation of the others"
                + ("." if ratio > WIDE else ": nothing in them warns that they are further off.")
            )
        return text

    def shown(self, dimension: int, value: float) -> str:
        """A value of an input; a date where it is one."""
        dates = self.dates.get(dimension)
        return number(value) if dates is None else day_text(value, dates)

    def words(self) -> str:
        return f"{told(self.model, self.names)}<pre>{escaped(self.model.summary())}</pre>"

    def score_section(self) -> str:
        several = len(self.targets) > 1
        text = ""
        for k, name in enumerate(self.targets):
            text += f"<h3>{escaped(name)}</h3>" if several else ""
            text += self.score_lines(k)
        if several:
            text += (
                f"<p>The negative log density of all targets together is {number(joint_nlpd(self.y, self.law))}; lower is "
                "better, and only comparable on the same rows.</p>"
            )
        pictures = [
            picture(
                partial(plots.plot_residuals, self.model, self.X, self.observed, output=k),
                f"Residuals of {name}",
                "Observed less predicted. About nine in ten points should lie in the shaded band, with no pattern left.",
            )
            for k, name in enumerate(self.targets)
        ]  # fmt: skip
        return text + pair(pictures)

    def score_lines(self, output: int) -> str:
        s, spread = self.scores[output], self.observed[:, output].std()
        lines = [
            ["mean absolute error", number(s["mae"]), "how far predictions are off, on average"],
            ["root mean square error", number(s["rmse"]), f"the same, large errors weighing more; the target's own standard deviation is {number(spread)}"],
            ["R squared", number(s["r2"]), "share of the variance that is explained; 1 is perfect"],
            ["NLPD", number(s["nlpd"]), "negative log density of what was observed; lower is better, and only comparable on the same rows"],
            ["CRPS", number(s["crps"]), "an error of the whole predicted distribution, in the units of the target"],
            ["in 50% intervals", f"{s['coverage_50']:.1%}", "should be about 50%"],
            ["in 90% intervals", f"{s['coverage_90']:.1%}", "should be about 90%"],
            ["width of 90% intervals", number(s["interval_width_90"]), "on average"],
        ]  # fmt: skip
        return table(["score", "value", "what it says"], lines)

    def covered(self, output: int) -> str:
        s = self.scores[output]["coverage_90"]
        of = f" of {escaped(self.targets[output])}" if len(self.targets) > 1 else ""
        room = 1.96 * np.sqrt(0.09 / len(self.rows))
        verdict = (
            "as it should be"
            if abs(s - 0.9) <= room
            else "intervals are too narrow"
            if s < 0.9
            else "intervals are wider than they need be"
        )
        return f"<p>90% intervals{of} hold {s:.1%} of the rows: {verdict}.</p>"

    def calibration(self) -> str:
        return "".join(map(self.covered, range(len(self.targets)))) + pair(
            [
                picture(
                    partial(plots.plot_calibration, self.model, self.X, self.y),
                    "Coverage",
                    "Share of rows inside central intervals against the probability they should hold. On the diagonal is calibrated.",
                ),
                picture(
                    partial(plots.plot_pit, self.model, self.X, self.y),
                    "Where observations lie in their predicted law",
                    "Flat is calibrated. A hump: intervals too wide. A bowl: too narrow. A slope: a bias.",
                ),
            ]
        )

    def relevance(self) -> str:
        pictures = []
        try:
            order = np.argsort(-relevance(self.model._model))
            height = max(2.2, 0.28 * min(len(self.names), 20) + 0.8)
            pictures.append(
                picture(
                    partial(plots.plot_relevance, self.model),
                    "Relevance of inputs",
                    "How fast the function varies along each input, per standard deviation of that input, over the fastest.",
                    height,
                )
            )
        except ValueError:  # a kernel without length-scales
            order = np.arange(len(self.names))
        # The levels of a column of text are one picture: a row has just one of them.
        column_of = {
            k: name for name, levels in levels_of(self.model).items() for k in levels.values()
        }
        features = dict.fromkeys(column_of.get(k, self.names[k]) for k in order.tolist())
        for feature in list(features)[:MAX_DRAWN]:
            for output, target in enumerate(self.targets):
                pictures.append(
                    picture(
                        partial(plots.plot_dependence, self.model, self.X, feature, output=output),
                        f"{target} along {feature}",
                        "Prediction with this input set, averaged over the rows, and the interval of an observation around it.",
                    )
                )
        return pair(pictures)

    def unsure(self) -> str:
        worst = np.argsort(-self.unsureness, kind="stable")[:MAX_UNSURE]
        low, high = (end.reshape(len(self.rows), -1) for end in self.law.interval(0.9))
        mean = self.law.mean.reshape(len(self.rows), -1)
        heads = ["row"]
        for name in self.targets:
            heads += [f"{name} predicted", "90% from", "to", "observed"]
        lines = []
        for row in worst.tolist():
            line = [str(row + 1)]
            for k in range(len(self.targets)):
                line += [number(v[row, k]) for v in (mean, low, high, self.observed)]
            lines.append(
                line + [self.shown(k, v) for k, v in enumerate(self.rows[row, :MAX_DRAWN])]
            )
        heads += self.names[:MAX_DRAWN]
        return f"<p>{self.spread()}The least sure rows come first:</p>" + table(heads, lines)

    def spread(self) -> str:
        """How unequally sure the model is, where there are enough rows to say so."""
        middle = float(np.median(self.unsureness))
        if len(self.rows) < LEAST_RANKED or not middle > 0:
            return ""
        ratio = float(np.quantile(self.unsureness, 0.95)) / middle
        if ratio < EQUALLY_SURE:
            return "Predictions of all rows are about equally sure. "
        return (
            f"The least sure twentieth of the rows have a standard deviation at least {ratio:.2g} times that of the "
            "row in the middle. "
        )

    def settings(self) -> str:
        lines = [[name, str(value)] for name, value in self.model.get_params(deep=False).items()]
        return table(["setting", "value"], lines)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"
