"""What the command line makes of files as people have them: options for text files, lists of columns, remarks, missing packages."""

import html
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dsmgp
from dsmgp.cli.app import app

QUICK = ("--effort", "low", "--kernel", "rbf", "--max-iter", "2")
N = 60
pytestmark = pytest.mark.usefixtures("undrawn")


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


def fit(table, *options, code=0, target="y"):
    out = table.parent / "m.dsmgp"
    return run("fit", table, "-t", target, "-o", out, "--force", *QUICK, *options, code=code)


def inputs_of(table):
    return dsmgp.load(table.parent / "m.dsmgp").state_.schema.input_names


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 4, N).round(3)
    return pd.DataFrame({"x": x, "z": rng.normal(size=N).round(3), "y": np.sin(x).round(4) + 2})


@pytest.fixture
def table(rows, tmp_path):
    rows.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


def test_columns_may_be_given_as_lists(rows, table):
    rows.assign(a=1.0, b=np.arange(N)).to_csv(table, index=False)
    fit(table, "--drop", "a, b", "--drop", "z")
    assert inputs_of(table) == ["x"]
    fit(table, "--feature", "x,b")
    assert inputs_of(table) == ["x", "b"]
    fit(table, target="y,z")
    assert dsmgp.load(table.parent / "m.dsmgp").state_.schema.output_names == ["y", "z"]


def test_a_comma_may_be_part_of_a_name(rows, table):
    rows.rename(columns={"z": "z,x"}).to_csv(table, index=False)
    fit(table, "--drop", "z,x")
    assert inputs_of(table) == ["x"]


def test_lists_of_columns_work_for_folders_of_files_too(rows, tmp_path):
    (tmp_path / "data").mkdir()
    rows.assign(a=1.0).to_parquet(tmp_path / "data" / "0.parquet")
    model = tmp_path / "model"
    done = run("fit", tmp_path / "data", "-t", "y", "-o", model, "--drop", "z,a", *QUICK, "--json")
    assert json.loads(done.stdout)["inputs"] == ["x"]
    out = tmp_path / "out.parquet"
    run("predict", model, tmp_path / "data", "-o", out, "--keep", "a,z")
    assert list(pd.read_parquet(out))[:2] == ["a", "z"]
    (tmp_path / "data" / "0.parquet").write_text("no Parquet")
    done = run("fit", tmp_path / "data", "-t", "y", "-o", tmp_path / "n", code=2)
    assert "cannot be read as Parquet" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--drop", "Zz"), "no column 'Zz'; the table has 'x', 'z', 'y'; did you mean 'z'?"),
        (("--feature", "x,zz"), "no column 'zz'; the table has 'x', 'z', 'y'; did you mean 'z'?"),
        (("--text", "q"), "no column 'q'; the table has 'x', 'z', 'y'"),
        (("--effort", "hihg"), "did you mean 'high'? see "),
        (("--missing", "eror"), "'eror' is not one of 'drop', 'model', 'error'; did you mean 'error'?"),
        (("--decimal", "x"), "expected --decimal as . or , got 'x'"),
    ],
)  # fmt: skip
def test_names_and_words_that_are_nearly_right_are_suggested(table, options, message):
    assert message in fit(table, *options, code=2).stderr


def test_every_problem_of_a_table_has_a_line_of_its_own(rows, table):
    messy = rows.astype(object)
    messy.loc[3, "x"], messy.loc[5, "z"] = "abc", "unknown"
    messy.to_csv(table, index=False)
    lines = fit(table, code=2).stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[0].endswith("rows.csv has 2 problems:")
    assert [line.split(" holds")[0] for line in lines[1:]] == ["  column 'x'", "  column 'z'"]
    fit(table, "--na", "abc,unknown")
    assert inputs_of(table) == ["x", "x missing", "z", "z missing"]
    fit(table, "--drop", "x,z", "--feature", "x", code=2)
    messy.loc[5, "z"] = 0.0
    messy.to_csv(table, index=False)
    fit(table, "--drop", "x")
    assert inputs_of(table) == ["z"]
    # Columns that the model does not use are no problem for it.
    out = table.parent / "out.csv"
    run("predict", table.parent / "m.dsmgp", table, "-o", out, "--keep", "x")
    assert pd.read_csv(out)["x"][3] == "abc"


def test_how_a_file_is_written_can_be_said(rows, tmp_path):
    table = tmp_path / "rows.csv"
    german = pd.DataFrame(
        {
            "Größe": [f"{value:.3f}".replace(".", ",") for value in rows["x"] + 1],
            "Tag": [f"{k % 12 + 1:02d}.{k % 11 + 1:02d}.2020" for k in range(N)],
            "y": rows["y"].map(str).str.replace(".", ","),
        }
    )
    german["y"] = [f"{value:.3f}".replace(".", ",") for value in rows["y"]]
    german.to_csv(table, sep=";", index=False, encoding="cp1252")
    assert "give --encoding latin-1" in fit(table, code=2).stderr
    reading = ("--encoding", "cp1252")
    message = fit(table, *reading, code=2).stderr
    assert "--decimal ," in message
    assert "--dayfirst" in message
    reading += ("--decimal", ",", "--dayfirst", "--na", "unbekannt")
    done = fit(table, *reading, "--json")
    assert json.loads(done.stdout)["inputs"] == ["Größe", "Tag"]
    assert "'01.01.2020' is read as the date 2020-01-01" in done.stderr
    model = tmp_path / "m.dsmgp"
    scores = json.loads(run("evaluate", model, table, *reading, "--json").stdout)
    assert scores["rmse"] < 1
    assert any("is read as the date" in remark for remark in scores["remarks"])
    run("predict", model, table, *reading, "-o", tmp_path / "out.csv")
    run("report", model, table, *reading, "-o", tmp_path / "r.html")


def test_numbers_that_are_codes_can_be_read_as_text(rows, table):
    rows.assign(z=np.resize(["01", "02", "03"], N)).to_csv(table, index=False)
    fit(table, "--text", "z")
    assert inputs_of(table) == ["x", "z=01", "z=02", "z=03"]


def test_json_lines_are_fitted_and_predicted(rows, tmp_path):
    table = tmp_path / "rows.jsonl"
    rows.to_json(table, orient="records", lines=True)
    fit(table)
    run("predict", tmp_path / "m.dsmgp", table, "-o", tmp_path / "out.jsonl")
    assert len(pd.read_json(tmp_path / "out.jsonl", lines=True)) == N


@pytest.mark.parametrize(
    ("word", "n_rows"), [("drop", N - 2), ("model", N), ("impute", N), (None, N)]
)
def test_missing_values_are_dropped_or_left_to_the_model(rows, table, word, n_rows):
    rows.loc[3:4, "z"] = np.nan
    rows.to_csv(table, index=False)
    options = () if word is None else ("--missing", word)
    assert json.loads(fit(table, *options, "--json").stdout)["rows"] == n_rows


@pytest.mark.parametrize("word", ["error", "refuse"])
def test_missing_values_can_be_an_error(rows, table, word):
    rows.loc[3, "z"] = np.nan
    rows.to_csv(table, index=False)
    assert "column 'z' has no value in row 4" in fit(table, "--missing", word, code=2).stderr


def test_former_words_are_not_in_the_help():
    done = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "300"})
    assert "impute" not in done.stdout
    assert "drop|model|error" in done.stdout


def test_training_rows_flatter_an_evaluation(rows, table):
    fit(table)
    model = table.parent / "m.dsmgp"
    done = run("evaluate", model, table, "--json")
    (remark,) = (r for r in json.loads(done.stdout)["remarks"] if "training rows" in r)
    assert remark.startswith(f"all {N} rows are training rows")
    assert remark in done.stderr
    assert remark in run("report", model, table, "-o", table.parent / "r.html").stderr
    rows.assign(y=rows["y"] + 0.001).to_csv(table, index=False)
    assert json.loads(run("evaluate", model, table, "--json").stdout)["remarks"] == []


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_intervals_below_zero_of_a_positive_target_are_remarked_on(rows, table, command):
    rng = np.random.default_rng(1)
    rows["y"] = np.exp(rng.normal(size=N))
    rows.to_csv(table, index=False)
    fit(table, "--output-warp", "none")
    out = ("-o", table.parent / "r.html") if command == "report" else ()
    done = run(command, table.parent / "m.dsmgp", table, *out, "--json")
    remarks = json.loads(done.stdout)["remarks"]
    assert any("'y' is never negative" in r and "--output-warp positive" in r for r in remarks)


def test_text_columns_are_not_for_folders(rows, tmp_path):
    (tmp_path / "rows").mkdir()
    rows.to_parquet(tmp_path / "rows" / "0.parquet")
    done = run("fit", tmp_path / "rows", "-t", "y", "-o", tmp_path / "m", "--text", "x", code=2)
    assert "store such columns as text" in done.stderr


def test_fit_remarks_on_intervals(rows, table):
    rows["y"] = np.exp(np.random.default_rng(1).normal(size=N))
    rows.to_csv(table, index=False)
    done = fit(table, "--output-warp", "none", "--json")
    remarks = json.loads(done.stdout)["remarks"]
    assert remarks == dsmgp.load(table.parent / "m.dsmgp").remarks_
    assert any("'y' is never negative" in remark for remark in remarks)
    assert done.stderr.splitlines() == remarks
    assert fit(table, "--output-warp", "none", "--quiet").stderr == ""
    assert "'y' is never negative" in fit(table, "--output-warp", "none").stderr


def test_the_report_prints_what_its_page_says(rows, table):
    rows["y"] = np.exp(np.random.default_rng(1).normal(size=N))
    rows["c"], rows["share"] = np.resize(["a", "b"], N), [f"{k % 9 + 1}%" for k in range(N)]
    rows.to_csv(table, index=False)
    fit(table, "--output-warp", "none")
    rows.loc[3, "c"], rows.loc[4, "x"], rows.loc[5, "y"] = "new", np.nan, np.nan
    rows.to_csv(table, index=False)
    model, page = table.parent / "m.dsmgp", table.parent / "r.html"
    done = run("report", model, table, "-o", page, "--json")
    remarks = json.loads(done.stdout)["remarks"]
    assert done.stderr.splitlines() == remarks
    assert json.loads(run("evaluate", model, table, "--json").stdout)["remarks"] == remarks
    section = re.search(r'<section id="remarks">.*?</section>', page.read_text(), re.DOTALL)[0]
    *_, here = section.split("<h3>")
    assert [html.unescape(item) for item in re.findall("<li>(.*?)</li>", here)] == remarks
    for word in ("share", "without a target", "'new'", "1 missing", "training rows", "negative"):
        assert any(word in remark for remark in remarks)


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("typer", ["--help"]), ("rich", ["--help"]), ("pyarrow", ["fit", "rows.csv", "-t", "y", "-o", "m"])],
)  # fmt: skip
def test_without_the_extra_one_line_says_what_to_install(package, arguments, tmp_path):
    script = f"""
import sys
class Blocking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None
sys.meta_path.insert(0, Blocking())
from dsmgp.cli.__main__ import main
main()
"""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert package in done.stderr
    assert "pip install 'dsmgp[cli]'" in done.stderr


def test_a_model_reads_files_as_its_training_file_was_read(rows, table):
    text = rows.assign(
        x=[f"1,{k:03d}" for k in range(N)],
        day=[f"0{1 + k % 9}/0{1 + k % 7}/2020" for k in range(N)],
        z=["gone" if k % 9 == 0 else f"{v:.3f}" for k, v in enumerate(rows["z"])],
    )
    text.to_csv(table, index=False, sep=";")
    fit(table, "--decimal", ",", "--dayfirst", "--na", "gone")
    out = table.parent / "p.csv"
    run("predict", table.parent / "m.dsmgp", table, "-o", out)
    model = dsmgp.load(table.parent / "m.dsmgp")
    schema = model.state_.schema.columns
    assert (schema.decimal, schema.day_first, schema.missing_texts[0]) == (",", True, "gone")
    frame = pd.DataFrame(
        {
            "x": 1 + np.arange(N) / 1000,
            "z": np.where(np.arange(N) % 9 == 0, np.nan, rows["z"]),
            "day": pd.to_datetime(text["day"], dayfirst=True),
        }
    )
    np.testing.assert_allclose(pd.read_csv(out)["y_mean"], model.predict(frame), rtol=1e-6)
