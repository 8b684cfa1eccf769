"""What an installation takes beside other libraries: packages, megabytes on disk, seconds of the estimator's import.

    python benchmarks/footprint.py [--libraries dsmgp,gpytorch,...] [--again] [--quick] [--results FILE]

Each library is installed by pip into a virtual environment of its own, which is deleted afterwards: dsmgp as the wheel of the
last commit with the versions of constraints.txt, the others in their latest versions. Torch is the CPU build that constraints.txt pins;
the build that pip picks on Linux without further options brings CUDA and takes several gigabytes. Packages and megabytes are without
pip and setuptools, compiled bytecode included. Seconds are medians over 5 fresh processes after a first import. "above sklearn.base"
is the import of the estimator in a process that has imported sklearn.base. Results are kept in benchmarks/results/footprint.json.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from statistics import median

from harness import HERE, Runs, results_path, setting, table

ROOT = HERE.parent
CONSTRAINTS = ROOT / "constraints.txt"
OURS = ("dsmgp", "dsmgp[torch]")
# What users import from each library.
ESTIMATORS = {
    "dsmgp": "from dsmgp import DSMGPRegressor",
    "dsmgp[torch]": "from dsmgp import DSMGPRegressor",
    "scikit-learn": "from sklearn.gaussian_process import GaussianProcessRegressor",
    "gpboost": "from gpboost import GPModel",
    "gpytorch": "from gpytorch.models import ExactGP",
    "lightgbm": "from lightgbm import LGBMRegressor",
    "catboost": "from catboost import CatBoostRegressor",
    "ngboost": "from ngboost import NGBRegressor",
}
# Of every environment, and no part of what was asked for.
TOOLS = ("pip", "setuptools")
REPEATS = 5
COLUMNS = {
    "library": "library", "version": "version", "packages": "packages", "megabytes": "MB on disk",
    "import_seconds": "import (s)", "above_sklearn": "above sklearn.base (s)",
}  # fmt: skip


def built_wheel(folder: Path) -> Path:
    """Build the wheel of the commit that results name; the working tree may have changed since."""
    source = folder / "source"
    sources = subprocess.check_output(["git", "archive", "HEAD"], cwd=ROOT)
    with tarfile.open(fileobj=io.BytesIO(sources)) as archive:
        archive.extractall(source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def requirements(library: str, folder: Path) -> list[str]:
    """What pip is asked for."""
    if library in OURS:
        extras = library.removeprefix("dsmgp")
        return ["-c", str(CONSTRAINTS), f"{built_wheel(folder)}{extras}"]
    return [library, pinned("torch")] if library == "gpytorch" else [library]


def pinned(name: str) -> str:
    """The line of constraints.txt for a package."""
    return next(
        line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(f"{name}==")
    )


def megabytes(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


TIMED = """
{before}
from time import perf_counter
start = perf_counter()
{statement}
print(perf_counter() - start)
"""


def seconds(python: Path, statement: str, before: str, repeats: int) -> float:
    """Median of the seconds that a statement takes in fresh processes, after another one."""
    command = [python, "-W", "ignore", "-c", TIMED.format(before=before, statement=statement)]
    spent = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(repeats + 1)
    ]
    return round(median(spent[1:]), 3)


def measure(library: str, repeats: int) -> dict[str, object]:
    """Install a library into an environment of its own, and look at what is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "home", with_pip=True)
        python = folder / "home" / "bin" / "python"
        site = next((folder / "home" / "lib").glob("python*")) / "site-packages"
        empty = megabytes(site)
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", *requirements(library, folder)]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1][:200]}
        listed = subprocess.check_output([*pip, "list", "--format", "json"], text=True)
        versions = {package["name"]: package["version"] for package in json.loads(listed)}
        statement = ESTIMATORS[library]
        row: dict[str, object] = {
            "version": versions[library.partition("[")[0]],
            "packages": len(versions.keys() - set(TOOLS)),
            "megabytes": round(megabytes(site) - empty),
            "import_seconds": seconds(python, statement, "", repeats),
        }
        if library in OURS:  # whose base classes are scikit-learn's
            row["above_sklearn"] = seconds(python, statement, "import sklearn.base", repeats)
        return row


def page(rows: list[dict]) -> str:
    order = list(ESTIMATORS)
    return table(COLUMNS, sorted(rows, key=lambda row: order.index(row["library"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", default=",".join(ESTIMATORS))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true", help="scikit-learn only, one repeat")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    libraries = ["scikit-learn"] if arguments.quick else arguments.libraries.split(",")
    path = arguments.results or results_path("footprint", arguments.quick)
    runs = Runs(path, ("library",), arguments.again)
    for library in libraries:
        if runs.is_due(library=library):
            origin = setting()  # before: there may be a new commit afterwards
            found = measure(library, 1 if arguments.quick else REPEATS)
            runs.add([{"library": library} | found | origin])
            print(runs.find(library=library), flush=True)
    print(page(runs.rows))


if __name__ == "__main__":
    main()
