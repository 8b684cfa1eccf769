"""``dsmgp fit --changes-along``: a table of rows in order, whose function may change abruptly."""

import json

import numpy as np
import pandas as pd
import pytest

import dsmgp
from tests.cli.test_cli import run

QUICK = ("--kernel", "rbf", "--max-iter", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(1)
    folder, t = tmp_path_factory.mktemp("changes"), np.arange(120)
    day = pd.date_range("2021-03-01", periods=120, freq="D")
    load = np.sin(t / 15) + 5.0 * (t > 40) - 4.0 * (t > 80) + 0.1 * rng.normal(size=120)
    load[20] += 8.0
    pd.DataFrame({"day": day, "load": load}).to_csv(folder / "series.csv", index=False)
    run("fit", folder / "series.csv", "-t", "load", "-o", folder / "load.dsmgp", "--changes-along", "day",
        "--outliers", *QUICK)  # fmt: skip
    return folder


def test_changes_are_listed_with_their_dates(folder):
    arguments = ("fit", folder / "series.csv", "-t", "load", "-o", folder / "again.dsmgp", "--force",
                 "--changes-along", "day", "--outliers", *QUICK)  # fmt: skip
    changes = json.loads(run(*arguments, "--json").stdout)["changes"]
    assert [(each["low"], each["high"]) for each in changes] == [
        ("2021-04-10", "2021-04-11"),
        ("2021-05-20", "2021-05-21"),
    ]
    assert (folder / "again.dsmgp").read_bytes() == (folder / "load.dsmgp").read_bytes()
    text = run(*arguments).stdout
    assert "probability 1.00, 1.00 between 2021-04-10 and 2021-04-11" in text
    assert all(each["within"] > 0.9 for each in changes)
    assert "NLPD" not in text


def test_only_so_many_changes_are_listed(folder, monkeypatch):
    monkeypatch.setattr("dsmgp.cli.fit.MAX_CHANGES", 1)
    text = run("fit", folder / "series.csv", "-t", "load", "-o", folder / "some.dsmgp",
               "--changes-along", "day", "--outliers", *QUICK).stdout  # fmt: skip
    assert text.count("probability") == 1
    assert "and 1 more; --json lists all" in text


def test_the_other_commands_take_such_a_model(folder, undrawn):
    model, series = folder / "load.dsmgp", folder / "series.csv"
    run("predict", model, series, "-o", folder / "predicted.csv")
    predicted = pd.read_csv(folder / "predicted.csv")
    loaded = dsmgp.load(model)
    X = pd.read_csv(series, parse_dates=["day"])[["day"]]
    np.testing.assert_allclose(predicted["load_mean"], loaded.predict(X), rtol=1e-12)
    scores = json.loads(run("evaluate", model, series, "--json").stdout)
    assert scores["r2"] > 0.8
    about = json.loads(run("info", model, "--json").stdout)
    assert about["settings"]["structure"]["outliers"] is True
    assert (about["changes_along"], about["loo_nlpd"], about["leaves"]) == ("day", None, 1)
    assert "loo_nlpd" not in run("info", model).stdout
    run("report", model, series, "-o", folder / "report.html")
    text = (folder / "report.html").read_text()
    assert "2021-04-10" in text
    assert "Training rows that are treated as outliers: 21." in text


def test_the_input_that_orders_rows_is_not_filled_in(folder):
    table = pd.read_csv(folder / "series.csv")
    table.loc[7, "day"] = None
    table.to_csv(folder / "gap.csv", index=False)
    done = run("fit", folder / "gap.csv", "-t", "load", "-o", folder / "gap.dsmgp",
               "--changes-along", "day", "--missing", "impute", code=2)  # fmt: skip
    assert "the column 'day' orders the rows and has missing values" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--changes-along", "hour"), "unknown input 'hour': expected one of 'day'"),
        (("--outliers",), "--outliers needs --changes-along"),
        (
            ("--changes-along", "day", "--executor", "ray"),
            "executor is not available with structure='changepoint'; leave it out",
        ),
        (("--changes-along", "day", "--weights", "uniform"), "leave weights out"),
    ],
)
def test_options_that_exclude_each_other_are_refused_in_one_line(folder, options, message):
    done = run(
        "fit", folder / "series.csv", "-t", "load", "-o", folder / "no.dsmgp", *options, code=2
    )
    assert message in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert not (folder / "no.dsmgp").exists()
