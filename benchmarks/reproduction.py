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
    "table-results", "learning-objective", "figure-contour", "mixture-sizes", "figure-sharing",
]  # fmt: skip
HEAD = """# The paper's experiments, reproduced

*Written by benchmarks/reproduction.py from benchmarks/results/reproduction; do not edit.*

Every table and figure of Trapp et al. (AISTATS 2020) as one command:

    DSMGP_DATA=... dsmgp reproduce NAME [--quick]

(or `python -m dsmgp.reproduce`, which can also select data sets and force a rerun). `all` runs every one of them, and
`make reproduce` the quick form of everything. Results are stored row by row; an interrupted run continues where it stopped.
Figures below are in units of the training outputs' standard deviation, on random splits (70% for training) unless the data
come with one; of two outputs MAE is the mean and NLPD the sum. The paper's figures are shown next to ours, or in brackets. Year
and Flight, whose files we did not have, are missing. With these files in `DSMGP_DATA` (see `dsmgp.datasets`) the same commands
run them.

## Departures from the paper's text

- **Algorithm 1** with the errors of its pseudo-code corrected: a region that becomes a leaf ends where the next one begins (as printed,
  the lower bound of the next region is not updated, and regions overlap). Splits lie between two rows, and those that would leave a region
  empty are dropped. The upward pass multiplies the evidences of a product's children, where the printed one adds them.
- **R and K_P.** The paper gives R = 2 and K_P = (N / M)^(1 / R) for Kin40k alone; here they are used for every tree whose table does not
  say otherwise, with K_P rounded up. With two layers the algorithm does not keep leaves to M rows: its splits are uneven, and leaves of
  thousands of rows remain, more of them for the DSMGP and the rivals on the "same partition" than for experts with random rows.
- **Kernel.** SE-ARD, with one length scale per input, is a product over inputs here, and its length scales are learned.
- **NLPD** is of the mixture's own density. The paper projects the mixture onto the Gaussian with its moments, whose NLPD has a column of its own in Table 2.
- **Learning.** "DSMGP, posterior" is the paper's model at its settings (Algorithm 1, M = 100, K_S = 4, SE-ARD, hyperparameters theta
  learned on one partition), with wide log-normal priors on theta, by L-BFGS; above 10,000 rows for 20 iterations. "DSMGP, the paper
  literally" has no priors and 1,000 iterations of RMSprop. The paper gives neither the learning rate nor the starting point: ours are 0.05
  and length scales of half the square root of the number of inputs, and the best iterate is kept.
- **Rivals** are those of `dsmgp.baselines`: experts share theta, learned jointly with the same priors by L-BFGS (SVGP: natural gradients
  and Adam), where the paper used RMSprop. Experts have M = 100 rows drawn at random, or the regions of one partition ("same partition").
  SVGP has 100 inducing points, and KISS is additive over inputs. An exact GP of more than 2,000 rows learns theta on 2,000 of them and is
  conditioned on all.
- **Two outputs** (Parkinsons) share one tree, whose weights follow from their joint evidence, and each has its own theta. They are
  independent in "the paper literally"; the other columns of the DSMGP mix them where leave-one-out prefers that.
- **Seeds.** A spread (±) is the standard deviation over seeds, that is over splits and trees; above 10,000 rows rivals have one seed.

"DSMGP, gated" has the same tree and theta as "posterior", and the weights of the gate (with two outputs, its own theta). "DSMGP, default"
is `DSMGPRegressor()`, with the scores of benchmarks/results/accuracy.json (the same splits) where it was not run again. The rows of "the
paper literally", except for Parkinsons, and those of the approximation error were computed on a machine that cannot read the data files,
by a wrapper that passed the same splits to these experiments; their commits were filled in by hand.

Claims are tested seed by seed: "yes" and "no" refer to a single run.

## The paper's claims, checked
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
