"""The documentation: its examples run, it names every option, and the site builds without a warning."""

import ast
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from unittest.mock import patch
from urllib.parse import unquote

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
from dsmgp.gp.terms import STATIONARY
from tests.support.browser import opened

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
TUTORIALS = [t for t in sorted((DOCS / "tutorials").glob("*.md")) if t.stem not in STORED]


def tutorial_tool():
    """The module that runs the tutorials."""
    place = importlib.util.spec_from_file_location("tutorials", ROOT / "tools" / "tutorials.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


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
    text = "".join(page.read_text() for page in DOCS.glob("api/*.md"))
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
    members = dict(re.findall(r"::: ([\w.]+)\n    options:\n      members: \[(.*)\]", text))
    assert set(members["dsmgp.baselines"].split(", ")) == set(baselines.__all__)
    assert members["dsmgp.reproduce"] == "reproduce, reproduce_all"
    pictures = (DOCS / "pictures.md").read_text()
    assert all(name in pictures for name in plots.__all__)


def test_documented_defaults_are_those_of_the_signature():
    """As mkdocstrings reads them: it takes the first of several choices in braces for the default."""
    package = pytest.importorskip("griffe").load(
        "dsmgp", search_paths=[ROOT / "src"], docstring_parser="numpy"
    )
    functions = {name: getattr(dsmgp.DSMGPRegressor, name) for name in dir(dsmgp.DSMGPRegressor)}
    documented = {"": (package["regressor.DSMGPRegressor"], dsmgp.DSMGPRegressor)}
    for name, described in package["regressor.DSMGPRegressor"].members.items():
        if described.is_function and not name.startswith("_"):
            documented[name] = described, functions[name]
    for name in baselines.__all__:
        documented[name] = package["baselines"][name], getattr(baselines, name)
    n_found = 0
    for name, (described, called) in documented.items():
        parameters = inspect.signature(called).parameters
        sections = described.docstring.parse("numpy") if described.docstring else []
        for section in sections:
            for entry in section.value if section.kind.value == "parameters" else []:
                default = parameters[entry.name].default
                if entry.default is not None:
                    n_found += 1
                    assert ast.literal_eval(str(entry.default)) == default, (name, entry.name)
                alternatives = re.findall(r"[\"'](\w+)[\"']", str(entry.annotation))
                if isinstance(default, str) and alternatives:
                    assert default in alternatives, (name, entry.name)
    assert n_found > 60


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
    code += "\n".join(block for page in [*PAGES, *TUTORIALS] for block in blocks(page, "python"))
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
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials_print_what_the_pages_say(page, tmp_path):
    """The last digits may differ between machines; everything else is the same."""
    require_imports("\n".join(blocks(page, "python")))
    command = [sys.executable, ROOT / "tools" / "tutorials.py", page]
    # Two tutorials at a time: threads of OpenMP that wait for a core of the other's take minutes.
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=one_thread)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials_are_complete(page):
    """Several steps, figures with alternative texts, and what to read next."""
    text = page.read_text()
    images = re.findall(r"!\[(.*?)\]\((.*?)\)", text)
    assert all(len(alt) > 40 and (page.parent / file).exists() for alt, file in images)
    assert images or page.stem == "cluster"
    assert "\n## What to read next\n" in text
    assert len(re.findall("^```python", text, re.MULTILINE)) >= 3


@pytest.mark.parametrize(
    ("printed", "expected", "agrees"),
    [
        ("RMSE 0.53\n", "RMSE 0.53\n", True),
        ("RMSE 0.54 of 1,020\n", "RMSE 0.53 of 1,000\n", True),
        ("RMSE 0.63\n", "RMSE 0.53\n", False),
        ("RMSE 0.53\n", "MAE 0.53\n", False),
        ("-1.2e-05\n", "-1.2e-03\n", True),
        ("one\n", "", False),
    ],
)
def test_outputs_agree_up_to_the_last_digits(printed, expected, agrees):
    assert tutorial_tool().same(printed, expected) == agrees


def test_a_notebook_has_cells_and_outputs_of_its_page():
    page = DOCS / "tutorials" / "co2.md"
    cells = json.loads(tutorial_tool().notebook(page))["cells"]
    code = ["".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code"]
    assert code == blocks(page, "python")
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert printed == blocks(page, "text")
    figures = [output for output in outputs if output["output_type"] == "display_data"]
    assert len(figures) == page.read_text().count("![")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return place


@pytest.mark.slow
def test_the_site_has_the_api_and_the_tutorials(site):
    for page in (site / "api").glob("*/index.html"):
        assert ":class:" not in page.read_text()
    estimator = (site / "api" / "estimator" / "index.html").read_text()
    shown = re.findall(
        r"<b><code>(\w+)</code></b>.*?default:\s*<code>(.*?)</code>", estimator, re.DOTALL
    )
    assert {("effort", "&#34;medium&#34;"), ("hypotheses", "&#34;auto&#34;")} <= set(shown)
    tutorial = (site / "tutorials" / "co2" / "index.html").read_text()
    assert "GaussianProcessRegressor" in tutorial
    assert "last year plus drift" in tutorial
    assert (site / "tutorials" / "co2.ipynb").exists()


@pytest.fixture(scope="module")
def address(site):
    """Where a local server shows the site."""

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=site)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def target(site, path):
    """The file of the site that an address shows."""
    file = site / unquote(path)
    return file / "index.html" if file.is_dir() else file


def faults(seen, width, site, address):
    """What is wrong with a page at a width, in words."""
    found = {
        "viewport": seen["viewport"] != width,
        "wider than the screen": seen["width"] > width,
        "beyond the edge": seen["beyond"],
        "console": seen["console"],
        "fetched from elsewhere": seen["outside"],
        "images without text": seen["unlabelled"],
        "links to nowhere on the page": seen["dangling"],
        "nearly empty": seen["text"] < 500,
        "broken links": [link for link in seen["links"] if is_broken(link, site, address)],
    }
    return [f"{seen['page']} at {width}: {what}: {fault}" for what, fault in found.items() if fault]


def is_broken(link, site, address):
    """Whether a link into the site leads to no file, or to no such place in it."""
    if not link.startswith(address):
        return False
    path, _, anchor = link.removeprefix(address).partition("#")
    file = target(site, path)
    return not file.exists() or (anchor and f'id="{unquote(anchor)}"' not in file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["tutorials and reference", "everything else"])
def test_a_browser_shows_every_page_at_two_widths(part, site, address):
    """Nothing overflows, nothing is fetched from elsewhere, no link is broken."""
    pages = [str(p.parent.relative_to(site)) for p in site.glob("**/index.html")]
    chosen = [
        f"{address}{'' if page == '.' else page + '/'}"
        for page in sorted(pages)
        if page.startswith(("tutorials", "api")) == (part == "tutorials and reference")
    ]
    found = opened(chosen)
    assert len(found) == 2 * len(chosen) >= 30
    assert not [
        fault
        for seen, width in zip(found, (1280, 400) * len(chosen), strict=True)
        for fault in faults(seen, width, site, address)
    ]


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
