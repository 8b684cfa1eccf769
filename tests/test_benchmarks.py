"""The benchmarks that need no data run to their end in their quick form, and leave a table and JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gpytorch")  # a peer

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(name, tmp_path):
    results = tmp_path / f"{name}.json"
    command = [sys.executable, BENCHMARKS / f"{name}.py", "--quick", "--results", results]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| --- |" in done.stdout
    return json.loads(results.read_text())


@pytest.mark.slow
def test_engine_reports_every_size_and_constant(tmp_path):
    report = run("engine", tmp_path)
    assert all(row["batched_min_ratio"] > 0 for row in report["gradient"])
    assert set(report["cost_model"]["fitted"]) == set(report["cost_model"]["in_use"])
    assert {row["weights"] for row in report["prediction"]} == {"gated", "posterior", "uniform"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["speed", "memory", "finetune", "outofcore", "learned"])
def test_no_run_fails(name, tmp_path):
    rows = run(name, tmp_path)
    assert rows
    assert not [row for row in rows if "failed" in row]
    assert all(row["commit"] and row["machine"] for row in rows)


@pytest.mark.slow
def test_ray_finds_what_one_process_finds(tmp_path):
    pytest.importorskip("ray")
    report = run("cluster", tmp_path)
    assert report["equal_to_local"]
    assert report["overhead"]["fit"] > 0


@pytest.mark.slow
def test_scaling_does_not_run_again_what_is_there(tmp_path):
    rows = run("scaling", tmp_path)
    assert {row["rows"] for row in rows} == {300, 600}
    assert not [row for row in rows if "failed" in row]
    assert run("scaling", tmp_path) == rows
    assert (tmp_path / "scaling.png").exists()


@pytest.mark.slow  # half a minute of use
def test_use_without_end_takes_no_more_memory_and_drifts_nowhere(tmp_path):
    (report,) = run("soak", tmp_path)["rows"]
    assert report["rounds"] >= 10
    assert report["growth"] < 60  # MB; memory of C libraries comes and goes by tens
    assert report["drift"] < 1e-6
    assert report["spread_drift"] < 1e-6
    assert report["single_drift"] < 0.3  # docs/numerics.md


def test_tables_in_the_documentation_are_those_of_the_results():
    command = [sys.executable, BENCHMARKS / "pages.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_duplicates_are_measured_at_every_share(tmp_path):
    rows = run("duplicates", tmp_path)["rows"]
    assert [row["share"] for row in rows] == [0.0, 0.5, 0.9, 0.97, 0.99, 0.5, 0.9, 0.97, 0.99]
    assert rows[0]["fit_ratio"] == 1.0


@pytest.mark.slow
def test_raw_tables_are_scored_beside_peers(tmp_path):
    rows = run("tables", tmp_path)
    assert [row["method"] for row in rows] == ["dsmgp", "hist-boosting", "constant"]
    assert rows[0]["rmse"] < rows[-1]["rmse"]
    assert all(row["commit"] and row["machine"] for row in rows)


def test_a_series_is_forecast_beside_a_linear_model(tmp_path):
    ours, linear = run("forecast", tmp_path)
    assert "seasons" in ours["note"]
    assert ours["mae"] < 2.0 * linear["mae"]  # the series is a line and a season
