"""Write docs/reproduction.md, and its figures, from the results of the paper's experiments.

    python benchmarks/reproduction.py [--take FOLDER] [--check]

``--take`` first copies the JSON of ``python -m dsmgp.reproduce`` from its folder to benchmarks/results/reproduction.
``--check`` only says whether the page is up to date.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from dsmgp.reproduce.claims import claims
from dsmgp.reproduce.experiment import format_settings
from dsmgp.reproduce.runner import EXPERIMENTS
from dsmgp.reproduce.runs import describe_origin
from harness import HERE

RESULTS = HERE / "results" / "reproduction"
PAGE = HERE.parent / "docs" / "reproduction.md"
IMAGES = HERE.parent / "docs" / "images"
# In the order of the paper.
ORDER = [
    "figure-illustration", "figure-noise", "figure-motorcycle", "figure-approximation", "table-timings",
    "table-results", "figure-contour", "mixture-sizes", "figure-sharing",
]  # fmt: skip
HEAD = """# The paper's experiments, reproduced

*Written by benchmarks/reproduction.py from benchmarks/results/reproduction; do not edit.*

Every table and figure of Trapp et al. (AISTATS 2020) as one command:

    DSMGP_DATA=... dsmgp reproduce NAME [--quick]

(or `python -m dsmgp.reproduce`, which can also be told data sets and to run again), with `all` for every one of them, and
`make reproduce` for the quick form of everything. Results are kept row by row; a run that is stopped goes on where it was.
Figures below are in units of the training outputs' standard deviation, on random splits (70% for training) unless the data
come with one; of two outputs MAE is the mean and NLPD the sum. The paper's figures stand beside ours, or in brackets. Year
and Flight are not here: nobody may hand them on. With their files in `DSMGP_DATA` (see `dsmgp.datasets`) the same commands
run them.

Rivals are those of `dsmgp.baselines`: experts share theta, learned jointly on our backends, and have M = 100 rows drawn at
random, or the parts of one partition ("same partition"); SVGP has 100 inducing points, KISS is additive over inputs.
"DSMGP, posterior" is the paper's model at its settings: Algorithm 1, M = 100, K_S = 4, SE-ARD, theta on one partition,
with wide log-normal priors on theta (`priors=None` leaves them out), by L-BFGS; of Parkinsons' two outputs it learns mixtures
where leave-one-out prefers them. "DSMGP, the paper literally" has no priors and 1,000 iterations of RMSprop, for data with one
output. Its rows, and those of the approximation error, were computed on a machine without the data's file reader, by a wrapper
that gave these experiments the same splits; their commits were filled in by hand. A spread (±) is the standard deviation over seeds, that is over splits and trees.
Algorithm 1 with two layers does not keep to M: its cuts are uneven, and leaves of thousands of rows are left, of which the
DSMGP and the rivals on the "same partition" have more than those with experts drawn at random. Above 10,000 rows theta is
learned for 20 iterations there. "DSMGP, gated" has the same tree and theta, and the gate's weights (of two outputs, a theta
of its own). "DSMGP, default" is `DSMGPRegressor()` as it comes, with the scores of benchmarks/results/accuracy.json (the
same splits) where it was not run anew.
An exact GP of more than 2,000 rows learns theta on 2,000 of them and is conditioned on all.

## What they bear out
"""


def results() -> dict[str, list[dict]]:
    paths = {name: RESULTS / f"{name}.json" for name in ORDER}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    if "table-results" in found:
        found["table-results"] += defaults(found["table-results"])
    return found


def defaults(rows: list[dict]) -> list[dict]:
    """Scores of the defaults that the accuracy benchmark has, of the same splits in the same units, where none are among the rows."""
    there = {(r["data"], r["seed"]) for r in rows if r["column"] == "DSMGP, default"}
    known = {r["data"] for r in rows}
    measured = json.loads((HERE / "results" / "accuracy.json").read_text())
    return [
        row | {"column": "DSMGP, default"}
        for row in measured
        if row["method"] == "dsmgp"
        and row["data"] in known
        and (row["data"], row["seed"]) not in there
    ]


def page(found: dict[str, list[dict]]) -> str:
    parts = [HEAD + "\n" + claims(found)]
    for name, rows in found.items():
        experiment = EXPERIMENTS[name]
        parts.append(
            f"## {experiment.title}\n\n`python -m dsmgp.reproduce {name}`\n\n"
            f"![{experiment.title}](images/reproduction-{name}.png)\n\n{experiment.page(rows)}\n\n"
            f"{experiment.remark}\n\n*{format_settings(experiment.settings)}; "
            f"benchmarks/results/reproduction/{name}.json: {describe_origin(rows)}*"
        )
    missing = [name for name in ORDER if name not in found]
    if missing:
        parts.append(f"No results yet: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--take", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.take is not None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for name in ORDER:
            if (arguments.take / f"{name}.json").exists():
                shutil.copy(arguments.take / f"{name}.json", RESULTS)
    found = results()
    text = page(found)
    if arguments.check:
        stale = not PAGE.exists() or PAGE.read_text() != text
        print(f"{PAGE.name} {'is out of date' if stale else 'is up to date'}")
        sys.exit(stale)
    PAGE.write_text(text)
    for name, rows in found.items():
        EXPERIMENTS[name].draw(rows).savefig(IMAGES / f"reproduction-{name}.png", dpi=90)
    print(f"{PAGE} written from {', '.join(found)}")


if __name__ == "__main__":
    main()
