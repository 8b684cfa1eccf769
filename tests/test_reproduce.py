"""The paper's experiments run, can be stopped and gone on with, and leave table, figure and results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from oracle import induced_trees
from pyarrow import parquet

from dsmgp import DSMGPRegressor
from dsmgp.datasets import DATASETS
from dsmgp.reproduce import NAMES, paper, reproduce, reproduce_all, timings
from dsmgp.reproduce.__main__ import main
from dsmgp.reproduce.approximation import _leaf_rows
from dsmgp.reproduce.claims import claims
from dsmgp.reproduce.experiment import Plan, listed
from dsmgp.reproduce.runner import EXPERIMENTS
from dsmgp.reproduce.runs import Runs, origin, setting
from dsmgp.reproduce.sizes import posterior_entropy
from dsmgp.tree import leaves

INPUTS = {"airfoil": 5, "kin40k": 8, "motorcycle": 1, "lidar": 1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Made-up rows under the names of the benchmark data."""
    rng = np.random.default_rng(0)
    where = tmp_path / "data"
    where.mkdir()
    for name, n_dims in INPUTS.items():
        n = 60 if n_dims == 1 else 260
        X = rng.uniform(-1.0, 1.0, size=(n, n_dims))
        y = np.sin(3.0 * X[:, 0]) + 0.1 * rng.normal(size=n)
        columns = {f"x{k}": X[:, k] for k in range(n_dims)}
        columns |= dict.fromkeys(DATASETS[name][0], y)
        if name == "kin40k":
            columns["is_train"] = np.arange(n) < 200
        parquet.write_table(pa.table(columns), where / f"{name}.parquet")
    monkeypatch.setenv("DSMGP_DATA", str(where))
    return where


@pytest.fixture
def nothing(monkeypatch):
    monkeypatch.delenv("DSMGP_DATA", raising=False)


def said(lines):
    return lambda message: lines.append(message)


def test_every_experiment_of_the_paper_has_a_name():
    assert set(NAMES) == {
        "table-results", "table-timings", "figure-approximation", "figure-motorcycle", "figure-noise",
        "figure-contour", "figure-sharing", "mixture-sizes", "figure-illustration",
    }  # fmt: skip


QUICK = [
    "figure-illustration",
    "figure-motorcycle",
    "mixture-sizes",
    "table-timings",
    "figure-contour",
]


@pytest.mark.parametrize("name", QUICK)
def test_quick_form_writes_results_table_and_figure(name, folder, tmp_path):
    paths = reproduce(name, tmp_path / "out", quick=True)
    assert [path.suffix for path in paths] == [".json", ".md", ".png", ".svg"]
    assert all(path.stat().st_size > 0 for path in paths)
    rows = json.loads(paths[0].read_text())
    assert rows
    assert all(row["commit"] and row["machine"] and row["quick"] for row in rows)
    assert "| --- |" in paths[1].read_text()
    used = EXPERIMENTS[name].settings_of(True)
    assert all(row["settings"] == used for row in rows)
    assert f"*{listed(used)}; commit " in paths[1].read_text()
    assert "says nothing about accuracy" in paths[1].read_text()
    for picture in paths[2:]:
        assert listed(used).encode() in picture.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table-results", "figure-approximation", "figure-sharing"])
def test_longer_quick_forms_too(name, folder, tmp_path):
    test_quick_form_writes_results_table_and_figure(name, folder, tmp_path)


@pytest.mark.slow
def test_noise_is_fine_tuned_where_that_can_be(folder, tmp_path):
    if hasattr(DSMGPRegressor, "finetune"):
        test_quick_form_writes_results_table_and_figure("figure-noise", folder, tmp_path)
    else:
        with pytest.raises(NotImplementedError, match="finetune"):
            reproduce("figure-noise", tmp_path, quick=True)


def test_what_was_run_is_not_run_again(folder, tmp_path):
    first: list[str] = []
    reproduce("mixture-sizes", tmp_path, quick=True, data=["airfoil"], progress=said(first))
    assert any("airfoil" in line and " s" in line for line in first)
    before = (tmp_path / "quick" / "mixture-sizes.json").read_text()
    second: list[str] = []
    reproduce(
        "mixture-sizes", tmp_path, quick=True, seeds=2, data=["airfoil"], progress=said(second)
    )
    assert second[0] == "mixture-sizes: 1 of 2 to run"
    rows = json.loads((tmp_path / "quick" / "mixture-sizes.json").read_text())
    assert rows[: len(json.loads(before))] == json.loads(before)
    assert {row["seed"] for row in rows} == {0, 1}
    third: list[str] = []
    reproduce(
        "mixture-sizes", tmp_path, quick=True, data=["airfoil"], again=True, progress=said(third)
    )
    assert third[0] == "mixture-sizes: 1 of 1 to run"


def test_a_run_that_is_stopped_keeps_what_it_has(folder, tmp_path):
    def stop(message):
        if " 1/2" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("mixture-sizes", tmp_path, quick=True, progress=stop)
    lines: list[str] = []
    reproduce("mixture-sizes", tmp_path, quick=True, progress=said(lines))
    assert lines[0] == "mixture-sizes: 1 of 2 to run"


def test_data_that_are_not_there_are_left_out_and_named(folder, tmp_path):
    (folder / "kin40k.parquet").unlink()
    lines: list[str] = []
    reproduce("mixture-sizes", tmp_path, quick=True, progress=said(lines))
    assert "mixture-sizes: kin40k is left out, its file is not in DSMGP_DATA" in lines
    rows = json.loads((tmp_path / "quick" / "mixture-sizes.json").read_text())
    assert {row["data"] for row in rows} == {"airfoil"}


def test_without_any_data_it_says_what_to_do(nothing, tmp_path):
    with pytest.raises(FileNotFoundError, match="set DSMGP_DATA"):
        reproduce("mixture-sizes", tmp_path, quick=True)
    with pytest.raises(FileNotFoundError, match="set DSMGP_DATA"):
        reproduce("figure-motorcycle", tmp_path)


@pytest.mark.slow
def test_all_of_them_go_on_without_data(nothing, tmp_path):
    lines: list[str] = []
    paths = reproduce_all(tmp_path, quick=True, progress=said(lines))
    done = {path.stem for path in paths}
    assert {"figure-illustration", "figure-sharing"} <= done
    left = {line.split()[0] for line in lines if "is left out: " in line}
    assert done | left == set(NAMES)


def test_what_cannot_be_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="'table-results'"):
        reproduce("table-three", tmp_path)
    with pytest.raises(ValueError, match="seeds"):
        reproduce("mixture-sizes", tmp_path, seeds=0)
    with pytest.raises(ValueError, match="among airfoil"):
        reproduce("mixture-sizes", tmp_path, data=["airfield"])
    (tmp_path / "mixture-sizes.json").write_text("[{")
    with pytest.raises(ValueError, match="holds no results"):
        reproduce("mixture-sizes", tmp_path, data=["airfoil"])
    for other in ('{"rows": []}', "[1]"):
        (tmp_path / "mixture-sizes.json").write_text(other)
        with pytest.raises(ValueError, match="holds no rows of results"):
            reproduce("mixture-sizes", tmp_path, data=["airfoil"])


@pytest.fixture
def asked(monkeypatch):
    """Runs ``python -m dsmgp.reproduce`` in this process; gives the exit code."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return run


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_run(
    folder, tmp_path, asked, monkeypatch
):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    lines: list[str] = []
    with pytest.raises(OSError, match="taken"):
        reproduce("mixture-sizes", taken, quick=True, progress=said(lines))
    assert not [line for line in lines if " 1/" in line]
    for name in ("mixture-sizes", "all"):  # not "left out" nine times over
        message = asked(name, "--quick", "--out", taken)
        assert str(message).startswith("error: ")
        assert "taken" in message


def test_a_command_that_is_interrupted_says_that_it_goes_on(asked, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsmgp.reproduce.__main__.reproduce", stop)
    assert asked("mixture-sizes", "--out", tmp_path) == 130
    assert "what was run is kept" in capsys.readouterr().err


def test_what_all_cannot_heed_is_refused(asked, tmp_path, monkeypatch, capsys):
    assert asked("all", "--data", "airfoil", "--out", tmp_path) == 2
    assert "--data goes with one experiment" in capsys.readouterr().err
    told: list[bool] = []
    monkeypatch.setattr(
        "dsmgp.reproduce.runner.reproduce", lambda *_, again, **__: told.append(again) or []
    )
    reproduce_all(tmp_path, again=True)
    assert told == [True] * len(NAMES)


def test_times_of_algorithm_1_are_of_several_trees(folder, monkeypatch):
    seconds = iter([3.0, 1.0, 9.0, 2.0, 4.0])
    monkeypatch.setattr(timings, "_timed", lambda *_: {"seconds": next(seconds), "largest": 7})
    job = {"data": "airfoil", "method": "DSMGP", "quick": False}
    rows = EXPERIMENTS["table-timings"].run(job)
    assert rows[0]["seconds"] == 3.0  # the median, not a lucky draw
    assert rows[0]["trees"] == [1.0, 2.0, 3.0, 4.0, 9.0]
    assert "of 5 trees 1 to 9 s" in claims({"table-timings": rows})
    assert "1, 2, 3, 4, 9" in EXPERIMENTS["table-timings"].page(rows)
    assert "of one tree" in claims({"table-timings": [{**job, "seconds": 3.0}]})


def test_leaves_larger_than_asked_for_are_told(rng):
    X = rng.normal(size=(120, 2))
    model = DSMGPRegressor(
        "rbf", structure="paper", leaf_size=5, sum_children=2, optimizer=None, random_state=0
    ).fit(X, X[:, 0])
    sizes = [leaf.n_rows for leaf in leaves(model.tree_) for _ in range(leaf.n_rows)]
    found = _leaf_rows(model)
    assert found["largest"] == max(sizes) > 5
    assert found["mean_leaf"] == pytest.approx(np.mean(sizes), abs=0.05)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_committed_figures_have_their_axes_named(name):
    results = Path(__file__).parent.parent / "benchmarks" / "results" / "reproduction"
    rows = json.loads((results / f"{name}.json").read_text())
    figure = EXPERIMENTS[name].draw(rows)
    shown = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert all(a.get_xlabel() or a.get_xticklabels()[0].get_text() for a in shown)
    assert shown[0].get_ylabel() or shown[0].get_yticklabels()[0].get_text()


def test_full_plans_have_the_papers_settings():
    jobs = EXPERIMENTS["table-results"].jobs(Plan())
    assert {job["data"] for job in jobs} == set(paper.DATASETS)
    own = [job for job in jobs if job["data"] == "airfoil"]
    assert len({job["seed"] for job in own}) == 5
    # Rivals once on large data, and none that the paper could not run either.
    assert {job["seed"] for job in jobs if (job["data"], job["method"]) == ("protein", "SVGP")} == {
        0
    }
    assert not [job for job in jobs if (job["data"], job["method"]) == ("protein", "GP")]
    sizes = {job["rows"] for job in EXPERIMENTS["figure-approximation"].jobs(Plan())}
    assert sizes == {10, 100, 1000, 10_000}
    contour = EXPERIMENTS["figure-contour"].jobs(Plan())
    assert len({job["seed"] for job in contour}) == 10
    assert len({job["data"] for job in contour}) == 3
    sharing = EXPERIMENTS["figure-sharing"].jobs(Plan())
    assert {job["partitions"] for job in sharing} == set(paper.SHARING["naive"])


def test_entropy_is_that_of_all_induced_trees(rng):
    X = rng.uniform(-1, 1, size=(60, 2))
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.normal(size=60)
    model = DSMGPRegressor(
        "rbf", structure="paper", leaf_size=20, sum_children=3, product_children=2, depth=2,
        noise_variance=0.5, optimizer=None, weights="posterior", random_state=0,
    ).fit(X, y)  # fmt: skip
    inner = model._model
    number = {id(leaf): k for k, leaf in enumerate(leaves(inner.tree))}
    evidence = inner.experts.log_evidence.sum(axis=1)
    log_p = np.array(
        [
            p + sum(evidence[number[id(leaf)]] for leaf in some)
            for p, some in induced_trees(inner.tree)
        ]
    )
    log_p -= np.logaddexp.reduce(log_p)
    expected = -(np.exp(log_p) * log_p).sum()
    assert len(log_p) > 10
    np.testing.assert_allclose(posterior_entropy(inner.tree, inner.posterior), expected, atol=1e-9)


def test_results_say_where_they_come_from(tmp_path):
    assert set(setting()) == {"version", "commit", "machine"}
    rows = [{"commit": "a", "machine": "m"}, {"commit": "b", "machine": "m", "load": 1.5}]
    assert origin(rows) == "commit a, b; m; load 1.5 to 1.5 while times were taken"
    runs = Runs(tmp_path / "a.json", ["k"])
    assert runs.is_due({"k": 1})
    runs.add([{"k": 1, "value": 2.0}])
    again = Runs(tmp_path / "a.json", ["k"])
    assert not again.is_due({"k": 1})
    assert again.rows == [{"k": 1, "value": 2.0}]


@pytest.mark.slow
def test_command(nothing, tmp_path):
    command = [sys.executable, "-m", "dsmgp.reproduce"]
    done = subprocess.run(
        [*command, "figure-illustration", "--quick", "--out", tmp_path],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "figure-illustration.svg" in done.stdout
    done = subprocess.run(
        [*command, "table-timings", "--out", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "error: set DSMGP_DATA" in done.stderr
    assert "Traceback" not in done.stderr


def test_page_is_that_of_the_results():
    script = Path(__file__).parent.parent / "benchmarks" / "reproduction.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_claims_follow_the_figures():
    def row(column, nlpd, mae=0.3):
        return {"data": "airfoil", "column": column, "seed": 0, "mae": mae, "nlpd": nlpd}

    def holds(rows):
        text = claims({"table-results": rows})
        return [line.split(" | ")[2] for line in text.splitlines()[2:]]

    rivals = [row("PoE", 0.6), row("rBCM", 0.5)]
    assert holds([*rivals, row("DSMGP, posterior", 0.4)]) == ["yes", "yes"]
    assert holds([*rivals, row("DSMGP, posterior", 0.55)]) == ["yes", "**no**"]
    assert holds([*rivals, row("DSMGP, posterior", 0.7)]) == ["**no**", "**no**"]
    line = row("LR", 1.0, 0.5)
    assert holds([line, row("SVGP", 0.9)]) == ["yes"]
    assert holds([line, row("SVGP", 0.9, mae=0.6)]) == ["**no**"]
    timings = [{"data": "airfoil", "method": "DSMGP", "seconds": 0.05}]
    assert "| yes |" in claims({"table-timings": timings})
    timings[0]["seconds"] = 0.07
    assert "| **no** |" in claims({"table-timings": timings})
    curve = [{"curve": "DSMGP, gated", "rows": 100, "rmse": 0.3}]
    assert "| yes |" in claims({"figure-approximation": curve})
