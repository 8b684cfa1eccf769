"""The documentation: its examples run, it names every option, and the site builds without a warning."""

import importlib
import inspect
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import typer.main
from typer.testing import CliRunner

import dsmgp
import dsmgp.ray
from dsmgp import (
    baselines,
    changepoints,
    datasets,
    distributed,
    explain,
    plots,
    progress,
    report,
    reproduce,
    scores,
    tree,
)
from dsmgp.cli.app import app
from dsmgp.data.files import tables
from dsmgp.gp.kernels import STATIONARY

mpl.use("Agg")
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.glob("*.md") if "```python" in p.read_text())
STORED = {"million"}  # needs a GPU: shown with the output it had there
#: What users import from, and dsmgp.botorch.
PUBLIC = (
    dsmgp, baselines, datasets, distributed, explain, plots, progress, dsmgp.ray, report, reproduce, scores, changepoints, tree,
)  # fmt: skip
# A name for three types; the version; every experiment of the paper, which takes minutes.
WITHOUT_EXAMPLE = ("Node", "__version__", "reproduce_all")
SCRIPTS = [s for s in sorted((DOCS / "tutorials").glob("*.py")) if s.stem not in STORED]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def public():
    """All modules that users import from."""
    pytest.importorskip("botorch")
    return (*PUBLIC, importlib.import_module("dsmgp.botorch"))


def require_imports(code):
    """Skip a test of code that imports an extra which is not installed."""
    for name in re.findall(r"^ *(?:import|from) (\w+)", code, re.MULTILINE):
        pytest.importorskip(name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With the tables that the page on the command line speaks of."""
    rng = np.random.default_rng(0)
    n = 150
    frame = pd.DataFrame(
        {
            "size": rng.uniform(20, 200, n).round(1),
            "rooms": rng.integers(1, 7, n),
            "colour": rng.choice(["red", "blue"], n),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
        }
    )
    frame["price"] = 3 * frame["size"] + 20 * frame["rooms"] + 5 * rng.normal(size=n)
    frame[:110].to_csv(tmp_path / "train.csv", index=False)
    frame[110:].to_csv(tmp_path / "test.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_on_the_page_runs(folder):
    lines = [
        line[8:] for block in blocks(DOCS / "cli.md", "console") for line in block.splitlines()
    ]
    assert len(lines) >= 8
    for line in lines:
        arguments = [part.strip('"') for part in line.split()]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{line}: {done.output}"


def test_every_option_is_on_the_page():
    text = (DOCS / "cli.md").read_text()
    command = typer.main.get_command(app)
    for name, sub in command.commands.items():
        assert re.search(rf"\b{name}\b", text)
        for parameter in sub.params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    assert f"`{option}" in text or f" {option} " in text, f"{name} {option}"


def test_every_public_name_is_in_the_api(public):
    text = (DOCS / "api.md").read_text()
    for name in dsmgp.__all__:
        if name != "__version__":
            assert f"::: dsmgp.{name}\n" in text
    for module in public[1:]:
        whole = f"::: {module.__name__}\n" in text
        assert whole or all(
            f"::: {module.__name__}.{name}\n" in text
            for name in module.__all__
            if name not in dsmgp.__all__
        )
    listed = ", ".join(re.findall(r"    members: \[(.*)\]", text)).split(", ")
    assert {*baselines.__all__, "reproduce", "reproduce_all"} == set(listed)
    pictures = (DOCS / "pictures.md").read_text()
    assert all(name in pictures for name in plots.__all__)


def test_every_command_and_option_has_an_example():
    lines = [line for block in blocks(DOCS / "cli.md", "console") for line in block.splitlines()]
    for name, sub in typer.main.get_command(app).commands.items():
        examples = " ".join(line for line in lines if f"dsmgp {name} " in line) + " "
        assert examples.strip(), name
        for parameter in sub.params:
            options = [o for o in parameter.opts if o.startswith("-") and o != "--help"]
            assert not options or any(f" {o} " in examples for o in options), (name, options)


def public_names(modules):
    """What users import, call, read and set."""
    for module in modules:
        yield from (name for name in module.__all__ if name not in WITHOUT_EXAMPLE)
    for kind in (*dsmgp.DSMGPRegressor.__mro__, dsmgp.Mixture):
        if kind.__module__.startswith("dsmgp."):
            own = (name for name in vars(kind) if not name.startswith("_"))
            # Of scikit-learn's making; it documents them.
            yield from (f".{name}" for name in own if not name.endswith("_request"))
    for parameter in inspect.signature(dsmgp.DSMGPRegressor).parameters:
        yield f"{parameter}="


def test_every_public_name_has_an_example(public):
    """In a docstring, on a page or in a tutorial, all of which are run."""
    source = "".join(p.read_text() for p in (ROOT / "src").rglob("*.py"))
    code = "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", source, re.MULTILINE))
    code += "\n".join(block for page in PAGES for block in blocks(page, "python"))
    code += "\n".join(script.read_text() for script in SCRIPTS)
    words = set(re.findall(r"\.?\b\w+\b=?", code)) | set(re.findall(r"\w+", code))
    assert sorted(set(public_names(public)) - words) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_on_the_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_imports("\n".join(blocks(page, "python")))
    names = {}
    with ExitStack() as stack:
        # The page on extending adds to these.
        for registry in (STATIONARY, tables.EXTENSIONS, tables.READERS, tables.WRITERS):
            stack.enter_context(patch.dict(registry))
        for block in blocks(page, "python"):
            if "--8<--" not in block:
                exec(compile(block, str(page), "exec"), names)
    plt.close("all")


def test_the_readme_shows_the_quickstart():
    text = (ROOT / "README.md").read_text()
    for ending in ("py", "txt"):
        assert (DOCS / "tutorials" / f"quickstart.{ending}").read_text() in text


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_tutorials_print_what_the_pages_say(script, tmp_path):
    """Digits may differ between machines; everything else is the same."""
    require_imports(script.read_text())
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, check=True
    )

    def without_digits(text):
        return re.sub(r"-?\d+(\.\d+)?", "#", text)

    assert without_digits(done.stdout) == without_digits(script.with_suffix(".txt").read_text())


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "api" / "index.html").exists()
    assert "WARNING" not in done.stderr
    tutorial = (tmp_path / "site" / "tutorials" / "noise" / "index.html").read_text()
    assert "GaussianProcessRegressor" in tutorial
    assert "NLPD of one exact GP" in tutorial
    assert ":class:" not in (tmp_path / "site" / "api" / "index.html").read_text()


def test_the_picture_of_the_packages_is_that_of_the_imports():
    script = DOCS / "images" / "packages.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["design", "extending"])
def test_modules_and_names_on_the_page_exist(page):
    pytest.importorskip("gpytorch")  # some of them need it
    text = (DOCS / f"{page}.md").read_text()
    source = ROOT / "src" / "dsmgp"
    packages = "|".join(path.name for path in source.iterdir() if path.is_dir())
    for file in re.findall(rf"`((?:{packages})/\w+\.py)`", text):
        assert (source / file).exists(), file
    for name in re.findall(rf"`((?:{packages})(?:\.\w+)+)`", text):
        module, *attributes = name.split(".")
        found = importlib.import_module(f"dsmgp.{module}")
        for attribute in attributes:
            if not hasattr(found, attribute):
                importlib.import_module(f"{found.__name__}.{attribute}")
            found = getattr(found, attribute)
