"""The paper's experiments run, continue after an interrupt, and write results, table and figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dsmgp import DSMGPRegressor
from dsmgp.datasets import DATASETS
from dsmgp.reproduce import NAMES, paper, reproduce, reproduce_all
from dsmgp.reproduce.__main__ import main
from dsmgp.reproduce.claims import claims
from dsmgp.reproduce.experiment import Plan, format_settings
from dsmgp.reproduce.experiments import timings
from dsmgp.reproduce.experiments.approximation import leaf_sizes
from dsmgp.reproduce.runner import EXPERIMENTS
from dsmgp.reproduce.runs import Runs, describe_origin, provenance
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
def no_data(monkeypatch):
    monkeypatch.delenv("DSMGP_DATA", raising=False)


def test_every_experiment_of_the_paper_has_a_name():
    assert set(NAMES) == {
        "table-results", "table-timings", "figure-approximation", "figure-motorcycle", "figure-noise",
        "figure-contour", "figure-sharing", "mixture-sizes", "figure-illustration", "learning-objective",
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
    assert f"*{format_settings(used)}; commit " in paths[1].read_text()
    assert "says nothing about accuracy" in paths[1].read_text()
    for picture in paths[2:]:
        assert format_settings(used).encode() in picture.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["table-results", "figure-approximation", "figure-sharing", "learning-objective"]
)
def test_longer_quick_forms_do_too(name, folder, tmp_path):
    if name == "table-results":
        pytest.importorskip("gpytorch")
    test_quick_form_writes_results_table_and_figure(name, folder, tmp_path)


@pytest.mark.slow
def test_noise_is_fine_tuned(folder, tmp_path):
    test_quick_form_writes_results_table_and_figure("figure-noise", folder, tmp_path)


def test_jobs_with_results_are_not_run_again(folder, tmp_path):
    first: list[str] = []
    reproduce("mixture-sizes", tmp_path, quick=True, data=["airfoil"], progress=first.append)
    assert any("airfoil" in line and " s" in line for line in first)
    before = (tmp_path / "quick" / "mixture-sizes.json").read_text()
    second: list[str] = []
    reproduce(
        "mixture-sizes", tmp_path, quick=True, seeds=2, data=["airfoil"], progress=second.append
    )
    assert second[0] == "mixture-sizes: 1 of 2 to run"
    rows = json.loads((tmp_path / "quick" / "mixture-sizes.json").read_text())
    assert rows[: len(json.loads(before))] == json.loads(before)
    assert {row["seed"] for row in rows} == {0, 1}
    third: list[str] = []
    reproduce(
        "mixture-sizes", tmp_path, quick=True, data=["airfoil"], again=True, progress=third.append
    )
    assert third[0] == "mixture-sizes: 1 of 1 to run"


def test_an_interrupted_run_keeps_its_results(folder, tmp_path):
    def stop(message):
        if " 1/2" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("mixture-sizes", tmp_path, quick=True, progress=stop)
    lines: list[str] = []
    reproduce("mixture-sizes", tmp_path, quick=True, progress=lines.append)
    assert lines[0] == "mixture-sizes: 1 of 2 to run"


def test_missing_data_sets_are_left_out_and_reported(folder, tmp_path):
    (folder / "kin40k.parquet").unlink()
    lines: list[str] = []
    reproduce("mixture-sizes", tmp_path, quick=True, progress=lines.append)
    assert "mixture-sizes: kin40k is left out, its file is not in DSMGP_DATA" in lines
    rows = json.loads((tmp_path / "quick" / "mixture-sizes.json").read_text())
    assert {row["data"] for row in rows} == {"airfoil"}


def test_without_any_data_it_says_what_to_do(no_data, tmp_path):
    with pytest.raises(FileNotFoundError, match="set DSMGP_DATA"):
        reproduce("mixture-sizes", tmp_path, quick=True)
    with pytest.raises(FileNotFoundError, match="set DSMGP_DATA"):
        reproduce("figure-motorcycle", tmp_path)


@pytest.mark.slow
def test_all_experiments_run_that_need_no_data(no_data, tmp_path):
    lines: list[str] = []
    paths = reproduce_all(tmp_path, quick=True, progress=lines.append)
    done = {path.stem for path in paths}
    assert {"figure-illustration", "figure-sharing"} <= done
    left = {line.split()[0] for line in lines if "is left out: " in line}
    assert done | left == set(NAMES)


def test_experiments_without_a_package_they_need_are_left_out(tmp_path, monkeypatch, run_command):
    def missing(name, *_, **__):
        raise ImportError("dsmgp.baselines.SVGP needs torch and gpytorch")

    monkeypatch.setattr("dsmgp.reproduce.runner.reproduce", missing)
    lines: list[str] = []
    assert reproduce_all(tmp_path, progress=lines.append) == []
    assert lines[0].endswith("is left out: dsmgp.baselines.SVGP needs torch and gpytorch")
    monkeypatch.setattr("dsmgp.reproduce.__main__.reproduce", missing)
    assert run_command("table-results") == "error: dsmgp.baselines.SVGP needs torch and gpytorch"


def test_importing_the_experiments_loads_no_torch():
    code = "import sys, dsmgp.reproduce; assert not {'torch', 'gpytorch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_invalid_arguments_and_files_are_refused(folder, tmp_path):
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
def run_command(monkeypatch):
    """Run ``python -m dsmgp.reproduce`` in this process; return the exit code."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return run


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_run(
    folder, tmp_path, run_command, monkeypatch
):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    lines: list[str] = []
    with pytest.raises(OSError, match="taken"):
        reproduce("mixture-sizes", taken, quick=True, progress=lines.append)
    assert not [line for line in lines if " 1/" in line]
    for name in ("mixture-sizes", "all"):  # not "left out" nine times over
        message = run_command(name, "--quick", "--out", taken)
        assert str(message).startswith("error: ")
        assert "taken" in message


def test_an_interrupted_command_says_how_to_continue(run_command, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsmgp.reproduce.__main__.reproduce", stop)
    assert run_command("mixture-sizes", "--out", tmp_path) == 130
    assert "results so far are kept" in capsys.readouterr().err


def test_arguments_that_all_does_not_take_are_refused(run_command, tmp_path, monkeypatch, capsys):
    assert run_command("all", "--data", "airfoil", "--out", tmp_path) == 2
    assert "--data goes with one experiment" in capsys.readouterr().err
    passed_on: list[bool] = []
    monkeypatch.setattr(
        "dsmgp.reproduce.runner.reproduce", lambda *_, again, **__: passed_on.append(again) or []
    )
    reproduce_all(tmp_path, again=True)
    assert passed_on == [True] * len(NAMES)


def test_times_of_algorithm_1_are_medians_over_trees(folder, monkeypatch):
    seconds = iter([3.0, 1.0, 9.0, 2.0, 4.0])
    monkeypatch.setattr(timings, "_timed", lambda *_: {"seconds": next(seconds), "largest": 7})
    job = {"data": "airfoil", "method": "DSMGP", "quick": False}
    rows = EXPERIMENTS["table-timings"].run(job)
    assert rows[0]["seconds"] == 3.0  # the median, not a lucky draw
    assert rows[0]["trees"] == [1.0, 2.0, 3.0, 4.0, 9.0]
    faster = [{**row, "trees": [0.01, 0.02, 0.05, 2.0, 9.0], "seconds": 0.05} for row in rows]
    assert "| **on 3 of 5 trees** |" in claims({"table-timings": faster})
    assert "of 5 trees 1 to 9 s" in claims({"table-timings": rows})
    assert "1, 2, 3, 4, 9" in EXPERIMENTS["table-timings"].page(rows)
    assert "of one tree" in claims({"table-timings": [{**job, "seconds": 3.0}]})


def test_leaf_sizes_are_reported(rng):
    X = rng.normal(size=(120, 2))
    model = DSMGPRegressor(
        "rbf", structure="paper", leaf_size=5, sum_children=2, optimizer=None, random_state=0
    ).fit(X, X[:, 0])
    sizes = [leaf.n_rows for leaf in leaves(model.tree_) for _ in range(leaf.n_rows)]
    reported = leaf_sizes(model)
    assert reported["largest"] == max(sizes) > 5
    assert reported["mean_leaf"] == pytest.approx(np.mean(sizes), abs=0.05)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_committed_figures_have_their_axes_named(name):
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduction"
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


def test_results_have_their_origin(tmp_path):
    assert set(provenance()) == {"version", "commit", "machine"}
    rows = [{"commit": "a", "machine": "m"}, {"commit": "b", "machine": "m", "load": 1.5}]
    assert describe_origin(rows) == "commit a, b; m; load 1.5 to 1.5 while times were taken"
    runs = Runs(tmp_path / "a.json", ["k"])
    assert runs.is_due({"k": 1})
    runs.add([{"k": 1, "value": 2.0}])
    again = Runs(tmp_path / "a.json", ["k"])
    assert not again.is_due({"k": 1})
    assert again.rows == [{"k": 1, "value": 2.0}]


@pytest.mark.slow
def test_command(no_data, tmp_path):
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


def test_the_docs_page_is_up_to_date():
    script = Path(__file__).parents[2] / "benchmarks" / "reproduction.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_claims_follow_the_figures():
    def row(column, nlpd, mae=0.3, seed=0):
        return {"data": "airfoil", "column": column, "seed": seed, "mae": mae, "nlpd": nlpd}

    def holds(rows):
        text = claims({"table-results": rows})
        return [line.split(" | ")[2] for line in text.splitlines()[2:]]

    # As good as the paper's; ahead of every rival in MAE, and in NLPD.
    rivals = [row("PoE", 0.6, 0.29), row("MoE", 0.5, 0.31), row("DSMGP, default", 0.0, 0.2)]
    ahead = ["yes", "yes"]  # of the defaults
    assert holds([*rivals, row("DSMGP, posterior", 0.4, 0.28)]) == ["yes", *ahead, "yes", "yes"]
    found = holds([*rivals, row("DSMGP, posterior", 0.55)])
    assert found == ["yes", *ahead, "**no**", "**no**"]
    found = holds([*rivals, row("DSMGP, posterior", 0.7)])
    assert found == ["**no**", *ahead, "**no**", "**no**"]
    line = row("LR", 1.0, 0.5)
    assert holds([line, row("SVGP", 0.9)]) == ["yes"]
    assert holds([line, row("SVGP", 0.9, mae=0.6)]) == ["**no**"]


def test_claims_count_the_seeds_on_which_they_hold():
    def rows(column, values):
        return [
            {"data": "airfoil", "column": column, "seed": seed, "mae": 0.3, "nlpd": nlpd}
            for seed, nlpd in enumerate(values)
        ]

    # On each seed the best rival of that seed counts, not the one that is best on average.
    found = claims(
        {
            "table-results": rows("DSMGP, gated", [0.1, 0.5, 0.1])
            + rows("GRBCM", [0.0, 1.0, 1.0])
            + rows("NLE", [0.2, 0.6, 0.6])
        }
    )
    (line,) = (line for line in found.splitlines() if "in NLPD" in line)
    assert "**on 2 of 3 seeds**" in line
    assert "NLPD 0.233; best rival of each seed 0.400, mostly NLE" in line


def test_learning_on_the_mixture_is_compared_seed_by_seed():
    rows = [
        {"data": "airfoil", "seed": seed, "objective": objective, "mae": 0.3, "rmse": 0.4, "effective": 2.0,
         "nlpd": nlpd, "evidence": evidence}
        for objective, nlpds, evidence in (("surrogate", [0.5, 0.7], -1.0), ("full", [0.4, 0.8], -0.9))
        for seed, nlpd in enumerate(nlpds)
    ]  # fmt: skip
    lines = claims({"learning-objective": rows}).splitlines()
    assert [line.split(" | ")[2] for line in lines[2:]] == [
        "**on 1 of 2 seeds**",
        "**on 0 of 2 seeds**",
        "on 2 of 2 seeds",
    ]
    assert "| on 1 of 2 | on 0 of 2 |" in EXPERIMENTS["learning-objective"].page(rows)


def test_what_the_paper_says_of_its_panels_is_counted():
    def row(model, away, wider, jump):
        return {"seed": 0, "model": model, "away": away, "wider": wider, "jump": jump}

    rows = [row("GP", 0, 1, 0.1), row("gPoE", 0.3, 1.4, 0.1), row("rBCM", 0.2, 0.9, 0.1)]
    lines = claims({"figure-motorcycle": [*rows, row("DSMGP, posterior", 0.1, 1, 0.25)]})
    verdicts = [line.split(" | ")[2] for line in lines.splitlines()[2:]]
    assert verdicts == ["yes", "**no**", "yes", "**no**"]


def test_curves_and_times():
    timings = [{"data": "airfoil", "method": "DSMGP", "seconds": 0.05}]
    assert "| yes |" in claims({"table-timings": timings})
    timings[0]["seconds"] = 0.07
    assert "| **no** |" in claims({"table-timings": timings})
    curve = [{"curve": "DSMGP, gated", "rows": 100, "rmse": 0.3}]
    assert "| yes |" in claims({"figure-approximation": curve})
