"""One raw table with everything in it, through all commands."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dsmgp
from dsmgp.cli.app import app
from dsmgp.report.numbers import number

N = 160
QUICK = ("--effort", "low", "--kernel", "rbf", "--max-iter", "3")
pytestmark = pytest.mark.filterwarnings("ignore:.*(column|left out):UserWarning")


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with numbers, text, dates, flags, gaps, many levels, keys, a constant, an empty column, and rows without a target."""
    folder, rng = tmp_path_factory.mktemp("raw"), np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "key": [f"id-{k}" for k in range(N)],
            "size": np.where(rng.random(N) < 0.1, np.nan, rng.normal(size=N)),
            "colour": rng.choice(np.array(["red", "blue", None], dtype=object), N),
            "shop": [f"s{k}" for k in rng.integers(0, 35, N)],
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, N), "D"),
            "flag": rng.random(N) < 0.5,
            "same": "yes",
            "empty": np.nan,
        }
    )
    frame["price"] = np.nan_to_num(frame["size"]) + 2.0 * (frame["colour"] == "red")
    frame.loc[5, "price"] = np.nan
    frame[:120].to_csv(folder / "train.csv", index=False)
    test = frame[120:].copy()
    test.loc[121, "price"] = np.nan
    test.loc[130, "colour"] = "green"
    test.loc[131, "sold"] = pd.NaT
    test.to_csv(folder / "test.csv", index=False)
    run("fit", folder / "train.csv", "-t", "price", "-o", folder / "m.dsmgp", *QUICK)
    return folder


def test_fit_says_what_became_of_the_columns(folder):
    done = run("fit", folder / "train.csv", "-t", "price", "-o", folder / "again.dsmgp", "--json", *QUICK)  # fmt: skip
    shown = json.loads(done.stdout)
    assert shown["inputs"] == dsmgp.load(folder / "m.dsmgp").state_.schema.input_names
    for remark in (
        "column 'key' has a different text in nearly every row and is left out",
        "column 'same' is constant and left out",
        "column 'empty' is empty and left out",
        "1 row without a target left out",
    ):
        assert remark in done.stderr
        assert remark in shown["remarks"]
    assert (folder / "again.dsmgp").read_bytes() == (folder / "m.dsmgp").read_bytes()


def test_predictions_are_those_of_python(folder):
    done = run("predict", folder / "m.dsmgp", folder / "test.csv", "-o", folder / "out.csv", "--keep", "key")  # fmt: skip
    assert "'colour': 1 row with levels that the training rows do not have ('green')" in done.stderr  # fmt: skip
    assert "column 'sold': 1 missing" in done.stderr
    written = pd.read_csv(folder / "out.csv")
    assert len(written) == N - 120
    model = dsmgp.load(folder / "m.dsmgp")
    frame = pd.read_csv(folder / "test.csv", parse_dates=["sold"])
    mean, std = model.predict(frame[list(model.feature_names_in_)], return_std=True)
    np.testing.assert_allclose(written["price_mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(written["price_std"], std, rtol=1e-9)


def test_a_model_of_the_command_line_is_that_of_python(folder):
    frame = pd.read_csv(folder / "train.csv", parse_dates=["sold"])
    model = dsmgp.DSMGPRegressor("rbf", effort="low", max_iter=3, random_state=0)
    model.fit(frame.drop(columns="price"), frame["price"])
    loaded = dsmgp.load(folder / "m.dsmgp")
    assert model.state_.schema.input_names == loaded.state_.schema.input_names
    test = frame[:20]
    np.testing.assert_allclose(
        model.predict(test[list(model.feature_names_in_)]),
        loaded.predict(test[list(loaded.feature_names_in_)]),
        rtol=1e-9,
    )


def test_evaluate_and_report_leave_out_rows_without_a_target(folder, undrawn):
    done = run("evaluate", folder / "m.dsmgp", folder / "test.csv", "--json")
    scores = json.loads(done.stdout)
    assert scores["rows"] == N - 121
    assert "1 row without a target left out" in scores["remarks"]
    assert scores["r2"] > 0.3
    run("report", folder / "m.dsmgp", folder / "test.csv", "-o", folder / "r.html")
    page = (folder / "r.html").read_text()
    assert "price along colour." in page
    assert ">nan<" not in page
    # Rows have their numbers in the file, where the second has no target.
    section = re.search(r'<section id="uncertain">.*?</section>', page, re.DOTALL)[0]
    lines = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in section.split("<tr>")[2:]]
    observed = pd.read_csv(folder / "test.csv")["price"]
    assert len(lines) == 10
    assert [line[4] for line in lines] == [number(observed[int(line[0]) - 1]) for line in lines]


def test_info_lists_inputs_and_settings(folder):
    about = json.loads(run("info", folder / "m.dsmgp", "--json").stdout)
    assert about["rows"] == 119
    assert about["inputs"][0] == "size"
    assert "shop effect" in about["inputs"]
    assert about["settings"]["missing"] == "model"


def test_columns_that_were_left_out_need_not_be_there(folder, undrawn):
    frame = pd.read_csv(folder / "test.csv").drop(columns=["key", "same", "empty"])
    frame.to_csv(folder / "short.csv", index=False)
    for command in (("predict", "-o", folder / "short-out.csv"), ("evaluate",), ("report", "-o", folder / "s.html")):  # fmt: skip
        run(command[0], folder / "m.dsmgp", folder / "short.csv", *command[1:])
    frame.drop(columns="shop").to_csv(folder / "shorter.csv", index=False)
    done = run("predict", folder / "m.dsmgp", folder / "shorter.csv", code=2)
    assert "there is no column 'shop'" in done.stderr


@pytest.mark.parametrize(("missing", "code"), [("drop", 0), ("error", 2)])
def test_missing_values_are_dropped_or_refused_on_demand(folder, missing, code):
    done = run("fit", folder / "train.csv", "-t", "price", "-o", folder / f"{missing}.dsmgp", "--drop", "empty",
               "--missing", missing, *QUICK, code=code)  # fmt: skip
    if missing == "drop":
        assert "with missing values left out" in done.stderr
    else:
        assert "column 'size' has no value in row" in done.stderr
        assert not (folder / "error.dsmgp").exists()


def test_a_model_of_an_array_reads_tables_with_the_names_of_its_columns(rng, tmp_path, undrawn):
    X = rng.normal(size=(80, 3))
    X[::9, 0], X[:, 1] = np.nan, np.nan
    y = np.nan_to_num(X[:, 0]) + X[:, 2]
    model = dsmgp.DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X, y)
    model.save(tmp_path / "m.dsmgp")
    table = pd.DataFrame(X, columns=["x0", "x1", "x2"]).assign(y=y)
    table.to_csv(tmp_path / "rows.csv", index=False)
    run("predict", tmp_path / "m.dsmgp", tmp_path / "rows.csv", "-o", tmp_path / "out.csv")
    np.testing.assert_allclose(
        pd.read_csv(tmp_path / "out.csv")["y_mean"], model.predict(X), rtol=1e-9
    )
    run("evaluate", tmp_path / "m.dsmgp", tmp_path / "rows.csv")
    run("report", tmp_path / "m.dsmgp", tmp_path / "rows.csv", "-o", tmp_path / "r.html")
