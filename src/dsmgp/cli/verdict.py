"""The verdict that ``dsmgp fit`` ends with: how good, how well calibrated, what to look at, and the next command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsmgp._util.significance import interval_grade

__all__ = ["next_command", "verdict_numbers", "verdict_rows"]

GRADES = {
    "calibrated": "well calibrated",
    "narrow": "too confident",
    "wide": "too cautious",
    "few": "too few rows to judge",
}
UNKNOWN = "not known; evaluate the model on rows that it has not seen"


def verdict_rows(model: Any, quiet: bool) -> list[tuple[str, str]]:
    """Return three lines, each with its name: accuracy, calibration, remarks."""
    from dsmgp.fitting.loo_check import loo_check

    state = model.state_
    check, names = loo_check(state), state.schema.output_names
    n_remarks = len(model.remarks_)
    where = "listed by remarks_ of the model in Python" if quiet else "see above"
    rows = [("accuracy", _accuracy(model)), ("calibration", UNKNOWN)]
    if check is not None:
        rows = [
            ("accuracy", _joined(names, [_error(state.score_kind, *e) for e in _errors(check)])),
            ("calibration", _joined(names, [_held(c, check.n_rows) for c in check.coverage_90])),
        ]
    return [*rows, ("remarks", f"{n_remarks}, {where}" if n_remarks else "none")]


def verdict_numbers(model: Any) -> dict[str, Any]:
    """Return the numbers of the verdict by name, for ``--json``; those of each target in a list."""
    from dsmgp.fitting.loo_check import constant_nlpd, loo_check

    check = loo_check(model.state_)
    numbers: dict[str, Any] = {"constant_nlpd": constant_nlpd(model.state_.rows.Y)}
    if check is not None:
        numbers |= {
            "loo_rmse": check.rmse,
            "constant_rmse": check.constant_rmse,
            "loo_coverage_90": check.coverage_90,
        }
    return numbers


def next_command(out: Path, from_files: bool) -> str:
    """Return the command that a user is likely to type next."""
    return f"dsmgp report {out} {'FOLDER' if from_files else 'TEST.csv'} --out report.html"


def _errors(check: Any) -> list[tuple[float, float]]:
    """Return the errors of the model and of a constant for each target."""
    return list(zip(check.rmse.tolist(), check.constant_rmse.tolist(), strict=True))


def _error(kind: str, rmse: float, constant: float) -> str:
    """Compare an error with that of a constant."""
    error = f"{kind} RMSE {rmse:,.4g}"
    if constant == 0.0:
        return f"{error}; the target is constant"
    if rmse >= constant:
        return f"{error}, no better than a constant ({constant:,.4g})"
    return f"{error}, {1 - rmse / constant:.0%} below that of a constant ({constant:,.4g})"


def _held(coverage: float, n_rows: int) -> str:
    """Describe the coverage of intervals."""
    grade = GRADES[interval_grade(coverage, n_rows)]
    return f"90% intervals cover {coverage:.1%} of the rows left out: {grade}"


def _joined(names: list[str], texts: list[str]) -> str:
    """Join the descriptions of several targets."""
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))


def _accuracy(model: Any) -> str:
    """Describe the accuracy by the score of models without predictions of rows left out; change points have none."""
    from dsmgp.fitting.loo_check import constant_nlpd
    from dsmgp.mixture.fitted_model import supports

    state = model.state_
    constant = constant_nlpd(state.rows.Y)
    if constant is None or not supports(state.model, "loo_score_"):
        return UNKNOWN
    score = model.loo_score_
    words = f"{constant - score:.3g} below" if score < constant else "no better than"
    return f"{state.score_kind} NLPD {score:.4g}, {words} that of a constant ({constant:.4g})"
