"""The command line, run as its users do: files in, files out, one line where something is wrong."""

import ast
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import typer.main
from typer.testing import CliRunner

import dsmgp
from dsmgp.cli.app import app
from dsmgp.cli.fit import interruptible, print_summary
from dsmgp.data.columns.schema import ColumnSchema
from dsmgp.data.input_schema import InputSchema
from dsmgp.data.table_error import TableError
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.progress import Listener, listening


def run(*arguments, code=0, **more):
    done = CliRunner().invoke(app, [str(a) for a in arguments], **more)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    n = 160
    frame = pd.DataFrame(
        {
            "size": rng.uniform(0, 4, n).round(3),
            "colour": rng.choice(["red", "blue"], n),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 100, n), "D"),
        }
    )
    frame["price"] = (
        np.sin(2 * frame["size"]) + (frame["colour"] == "red") + 0.1 * rng.normal(size=n)
    )
    return frame


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    rows[:120].to_csv(folder / "train.csv", index=False)
    rows[120:].to_parquet(folder / "test.parquet")
    quick = ("--effort", "low", "--kernel", "matern52", "--max-iter", "10")
    run("fit", folder / "train.csv", "-t", "price", "-o", folder / "price.dsmgp", *quick)
    return folder


def test_fit_writes_a_model_that_python_reads(folder, rows):
    model = dsmgp.load(folder / "price.dsmgp")
    assert list(model.feature_names_in_) == ["size", "colour", "sold"]
    assert model.state_.schema.input_names == ["size", "colour=blue", "colour=red", "sold"]
    assert model.score(rows[["size", "colour", "sold"]][120:], rows["price"][120:]) > 0.9


def test_predictions_are_those_of_python(folder, rows):
    out = folder / "predicted.parquet"
    run("predict", folder / "price.dsmgp", folder / "test.parquet", "--out", out,
        "--interval", 0.8, "--interval", 0.95, "--quantiles", "0.1", "--quantiles", "0.5,0.9", "--keep", "size")  # fmt: skip
    predictions = pd.read_parquet(out)
    assert list(predictions) == [
        "size", "price_mean", "price_std", "price_low_80", "price_high_80", "price_low_95",
        "price_high_95", "price_q10", "price_q50", "price_q90",
    ]  # fmt: skip
    np.testing.assert_array_equal(predictions["size"], rows["size"][120:])
    np.testing.assert_allclose(predictions["price_low_80"], predictions["price_q10"])
    inside = (rows["price"][120:].to_numpy() > predictions["price_low_95"]) & (
        rows["price"][120:].to_numpy() < predictions["price_high_95"]
    )
    assert inside.mean() > 0.8


def test_tables_may_come_through_pipes(folder):
    command = [sys.executable, "-m", "dsmgp.cli", "predict", folder / "price.dsmgp", "-"]
    given = (folder / "test.parquet").read_bytes()
    done = subprocess.run(command, input=given, capture_output=True, check=True)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == '"price_mean","price_std","price_low_90","price_high_90"'
    assert len(lines) == 41


def test_scores_are_those_of_python(folder):
    done = run("evaluate", folder / "price.dsmgp", folder / "test.parquet", "--json")
    scores = json.loads(done.stdout)
    assert scores["rows"] == 40
    assert 0.05 < scores["mae"] < scores["rmse"] < 0.3
    assert 0.7 <= scores["coverage_90"] <= 1.0
    words = run("evaluate", folder / "price.dsmgp", folder / "test.parquet").stdout
    assert "root mean square error" in words
    assert f"{scores['rmse']:,.5g}" in words


def test_a_dataset_is_evaluated_by_a_sample(folder, rows, tmp_path, monkeypatch, undrawn):
    data = tmp_path / "rows"
    data.mkdir()
    for k, part in enumerate((rows[120:140], rows[140:])):
        part.to_parquet(data / f"{k}.parquet")
    whole = json.loads(run("evaluate", folder / "price.dsmgp", folder / "test.parquet", "--json").stdout)  # fmt: skip
    for given in (data, data / "*.parquet", f"file://{data}"):
        found = json.loads(run("evaluate", folder / "price.dsmgp", given, "--json").stdout)
        assert found["by_target"] == whole["by_target"]
        assert found["rows"] == whole["rows"]
    monkeypatch.setattr("dsmgp.cli.inputs.MOST_SAMPLED", 15)
    done = run("evaluate", folder / "price.dsmgp", data, "--json")
    assert json.loads(done.stdout)["rows"] == 15
    assert f"15 of {whole['rows']} rows, drawn at random" in done.stderr
    run("report", folder / "price.dsmgp", data, "--out", tmp_path / "report.html")
    assert "price" in (tmp_path / "report.html").read_text()
    out = f"file://{tmp_path}/predicted.parquet"
    run("predict", folder / "price.dsmgp", data, "--out", out)
    assert len(pd.read_parquet(tmp_path / "predicted.parquet")) == whole["rows"]
    done = run("predict", folder / "price.dsmgp", folder / "test.parquet", "--out", out, code=2)
    assert "predictions of one local table are written to a local file" in done.output


def test_info_shows_the_contents_of_a_file(folder):
    about = json.loads(run("info", folder / "price.dsmgp", "--json").stdout)
    assert about["rows"] == 120
    assert about["targets"] == ["price"]
    assert about["settings"]["effort"] == "low"
    assert len(about["units"]["inputs"]["scale"]) == len(about["inputs"])
    assert "leaves" in run("info", folder / "price.dsmgp").stdout
    assert about["torch"] is None  # had no part in it


def test_info_names_the_kernel_of_a_kernel_with_values(wavy, tmp_path):
    options = {"leaf_size": 60, "max_iter": 1, "random_state": 0}
    first = dsmgp.DSMGPRegressor("rbf+rq", **options).fit(*wavy)
    dsmgp.DSMGPRegressor(first.kernel_, **options).fit(*wavy).save(tmp_path / "model.dsmgp")
    about = json.loads(run("info", tmp_path / "model.dsmgp", "--json").stdout)
    assert about["settings"]["kernel"] == "rbf+rq"


def test_info_reads_files_of_former_versions():
    sample = Path(__file__).parents[1] / "data" / "format-1.dsmgp"
    about = json.loads(run("info", sample, "--json").stdout)
    assert (about["format"], about["kernels"]) == (1, ["matern32"])
    assert about["torch"]


def test_models_that_python_saved_can_be_used(wavy, tmp_path):
    X, y = wavy
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = dsmgp.DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(frame, y)
    model.save(tmp_path / "model.dsmgp")
    frame.assign(y=y).to_csv(tmp_path / "rows.csv", index=False)
    run("predict", tmp_path / "model.dsmgp", tmp_path / "rows.csv", "-o", tmp_path / "out.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["y_mean"], model.predict(frame))


def test_several_targets_have_columns_each(rows, tmp_path):
    rows.assign(double=2 * rows["price"])[:80].to_csv(tmp_path / "rows.csv", index=False)
    run("fit", tmp_path / "rows.csv", "-t", "price", "-t", "double", "--drop", "sold", "-o",
        tmp_path / "m.dsmgp", "--effort", "low", "--kernel", "rbf", "--max-iter", 2)  # fmt: skip
    run("predict", tmp_path / "m.dsmgp", tmp_path / "rows.csv", "-o", tmp_path / "out.csv")
    predictions = pd.read_csv(tmp_path / "out.csv")
    assert {"price_mean", "double_mean", "double_low_90"} <= set(predictions)
    scores = json.loads(run("evaluate", tmp_path / "m.dsmgp", tmp_path / "rows.csv", "--json").stdout)  # fmt: skip
    assert "rmse" not in scores  # of different units
    for target in ("price", "double"):
        error = predictions[f"{target}_mean"] - rows.assign(double=2 * rows["price"])[target][:80]
        assert scores["by_target"][target]["mae"] == pytest.approx(np.abs(error).mean())
    assert np.isfinite(scores["joint_nlpd"])
    words = run("evaluate", tmp_path / "m.dsmgp", tmp_path / "rows.csv").stdout
    assert words.count("mean absolute error") == 2
    assert "all targets together" in words


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """A model that Python code fitted to frames, with dates and a name of the target."""
    folder = tmp_path_factory.mktemp("dated")
    frame = pd.DataFrame({"when": pd.date_range("2020-01-01", periods=60, freq="7h"), "x": 1.0})
    frame["x"] = np.linspace(0, 1, 60) ** 2
    y = pd.Series(np.sin(6 * frame["x"]), name="price")
    model = dsmgp.DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(frame, y)
    model.save(folder / "m.dsmgp")
    frame.assign(price=y).to_csv(folder / "rows.csv", index=False)
    frame.assign(price=y).to_parquet(folder / "rows.parquet")
    return folder, model.predict(frame)


def test_dates_and_names_of_models_that_python_saved_are_known(dated, undrawn):
    folder, mean = dated
    model, out = folder / "m.dsmgp", folder / "out.parquet"
    for rows in ("rows.csv", "rows.parquet", "rows*.parquet"):
        run("predict", model, folder / rows, "-o", out)
        np.testing.assert_allclose(pd.read_parquet(out)["price_mean"], mean)
    assert json.loads(run("evaluate", model, folder / "rows.csv", "--json").stdout)["r2"] > 0
    assert json.loads(run("info", model, "--json").stdout)["targets"] == ["price"]
    run("report", model, folder / "rows.csv", "-o", folder / "r.html")
    text = (folder / "r.html").read_text()
    assert "2020-01-01" in text
    assert "price along when" in text


def test_an_array_of_dates_is_known_by_numbers(tmp_path):
    X = pd.date_range("2020-01-01", periods=40).to_numpy()[:, None]
    model = dsmgp.DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X, np.arange(40.0))
    model.save(tmp_path / "m.dsmgp")
    pd.DataFrame({"x0": X[:, 0]}).to_csv(tmp_path / "rows.csv", index=False)
    run("predict", tmp_path / "m.dsmgp", tmp_path / "rows.csv", "-o", tmp_path / "out.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["y_mean"], model.predict(X))
    assert json.loads(run("info", tmp_path / "m.dsmgp", "--json").stdout)["targets"] == ["y"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "out.xyz"), "unknown extension"),
        (("--out", "no/out.csv"), "create it first"),
        (("--out", "out.csv", "--keep", "price_mean"), "'price_mean' cannot be kept"),
        (("--keep", "price_q5", "--quantiles", "0.05"), "'price_q5' cannot be kept"),
        (("--keep", "price_high_90"), "rename it first"),
    ],
)
def test_invalid_output_paths_are_refused_before_rows_are_read(
    folder, monkeypatch, options, message
):
    monkeypatch.chdir(folder)
    assert message in run("predict", "price.dsmgp", "gone.csv", *options, code=2).stderr


def test_predictions_of_a_folder_are_parquet(gappy):
    done = run("predict", gappy / "m.dsmgp", gappy / "rows", "-o", gappy / "out.csv", code=2)
    assert "give --out predictions.parquet" in done.stderr
    done = run("predict", gappy / "m.dsmgp", gappy / "rows", "-o", gappy / "o.parquet",
               "--keep", "y_mean", code=2)  # fmt: skip
    assert "cannot be kept" in done.stderr


def test_predict_and_report_answer_machines_too(folder, undrawn):
    model, rows = folder / "price.dsmgp", folder / "test.parquet"
    out = folder / "written.csv"
    done = json.loads(run("predict", model, rows, "-o", out, "--json").stdout)
    assert done == {"model": str(model), "rows": 40, "file": str(out), "remarks": []}
    done = json.loads(run("report", model, rows, "-o", folder / "written.html", "--json").stdout)
    assert done["file"] == str(folder / "written.html")


def test_demo_and_reproduce_answer_machines_too(monkeypatch, tmp_path):
    monkeypatch.setattr("dsmgp.demo.main", lambda tell: tell("fitting") or {"figure": "a.png"})
    done = run("demo", "--json")
    assert json.loads(done.stdout) == {"figure": "a.png"}
    assert "fitting" in done.stderr
    monkeypatch.setattr("dsmgp.reproduce.reproduce", lambda *_, **__: [tmp_path / "a.json"])
    done = run("reproduce", "figure-illustration", "--json")
    assert json.loads(done.stdout) == {"paths": [str(tmp_path / "a.json")]}


def test_an_interrupted_experiment_keeps_its_results(monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsmgp.reproduce.reproduce", stop)
    done = run("reproduce", "figure-illustration", "--out", tmp_path, code=130)
    assert "results so far are kept" in done.stderr
    assert "nothing was written" not in done.stderr


def test_fit_names_kernels_that_take_turns(capsys):
    families = [SimpleNamespace(kernel=kernel) for kernel in ("rbf", "matern52", "rbf")]
    inner = SimpleNamespace(families=families, n_rows=3, has_change_points=False)
    schema = InputSchema(ColumnSchema.of_numbers(["x0"], ["y"]))
    state = SimpleNamespace(model=inner, schema=schema, stacking=None, score_kind="LOO")
    model = SimpleNamespace(state_=state, loo_score_=1.0)
    print_summary(model, Path("m.dsmgp"), 1.0, False, False)
    assert "rbf, matern52" in capsys.readouterr().out


def test_fit_names_every_kernel_that_is_used(rows, tmp_path):
    def output_of(*options):
        return run("fit", tmp_path / "rows.csv", "-t", "price", "-o", tmp_path / "m.dsmgp",
                   "--drop", "sold", "--force", "--effort", "low", *options).stdout  # fmt: skip

    rows[:60].to_csv(tmp_path / "rows.csv", index=False)
    used = json.loads(output_of("--json"))["kernels"]
    assert used == list(dict.fromkeys(json.loads(run("info", tmp_path / "m.dsmgp", "--json").stdout)["kernels"]))  # fmt: skip
    assert "matern32+periodic" in output_of("--kernel", "matern32+periodic", "--max-iter", "2")
    help_text = " ".join(run("fit", "--help", env={"COLUMNS": "300"}).stdout.split())
    assert "periodic, a sum such as matern32+periodic" in help_text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "train.csv", "-t", "price", "-o", "price.dsmgp"), "exists already"),
        (("fit", "train.csv", "-t", "price", "-o", "no/m.dsmgp"), "create it first"),
        (("fit", "train.csv", "-t", "price", "-o", ".", "--force"), ". is a folder"),
        (("fit", "train.csv", "-t", "price", "-o", "./train.csv", "--force"), "train.csv is read"),
        (
            ("predict", "price.dsmgp", "train.csv", "-o", "train.csv"),
            "train.csv is read by this command",
        ),
        (
            ("report", "price.dsmgp", "train.csv", "-o", "price.dsmgp"),
            "price.dsmgp is read by this command",
        ),
        (
            ("report", "price.dsmgp", "train.csv", "-o", "train.csv"),
            "train.csv is read by this command",
        ),
        (("fit", "gone.csv", "-t", "price", "-o", "m.dsmgp"), "gone.csv does not exist"),
        (("fit", "train.csv", "-t", "prize", "-o", "m.dsmgp"), "no column 'prize'"),
        (("fit", "train.csv", "-t", "price", "-o", "m.dsmgp", "--kernel", "x"), "expected kernel"),
        (("predict", "train.csv", "train.csv"), "not a dsmgp model file"),
        (("predict", "price.dsmgp", "train.csv", "--interval", "2"), "between 0 and 1"),
        (("predict", "price.dsmgp", "train.csv", "--quantiles", "a"), "expected --quantiles"),
        (("predict", "price.dsmgp", "train.csv", "--keep", "a"), "no column 'a'; the table has"),
        (("predict", "price.dsmgp", "train.csv", "--json"), "give --out predictions.csv"),
        (("evaluate", "price.dsmgp", "gone.csv"), "does not exist"),
        (("info", "gone.dsmgp"), "does not exist"),
        (("reproduce", "table-9"), "unknown experiment 'table-9'; expected all or one of"),
        (("report", "price.dsmgp", "train.csv", "--out", "no/r.html"), "create it first"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    done = run(*arguments, code=2)
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    assert message in done.stderr
    assert {path: path.stat().st_mtime_ns for path in Path().iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "train.csv", "-o", "m.dsmgp"), "missing option '--target' / '-t'; see "),
        (("fit", "train.csv", "-t", "y", "-o", "m", "--effort", "x"), "'x' is not one of 'low'"),
        (("fit", "--foo"), "no such option: --foo"),
        (("fit", "train.csv", "-t", "y", "-o", "m", "--seed", "-1"), "invalid value for '--seed'"),
        (("predict",), "missing argument"),
        (("forecast",), "no such command 'forecast'"),
    ],
)
def test_errors_of_usage_are_one_line_too(arguments, message):
    done = run(*arguments, code=2)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.endswith(" --help\n")


def test_no_command_at_all_shows_the_help():
    done = CliRunner().invoke(app, [])
    assert "reproduce" in done.output
    assert "error" not in done.output


def test_debug_shows_the_error_itself(folder):
    done = CliRunner().invoke(app, ["info", str(folder / "gone.dsmgp"), "--debug"])
    assert isinstance(done.exception, dsmgp.ModelFileError)


def test_a_bug_is_one_line_too(folder, monkeypatch):
    monkeypatch.setattr("dsmgp._util.archive.read_archive", lambda path: 1 / 0)
    done = run("info", folder / "price.dsmgp", code=1)
    assert done.stderr.startswith("error: internal error, ZeroDivisionError")
    assert "--debug" in done.stderr


def _from_numpy(*_, **__):
    return np.zeros(2) + np.zeros(3)


def _from_a_library(*_, **__):
    return pa.array([1, "a"], pa.int64())


@pytest.mark.parametrize("fault", [_from_numpy, _from_a_library])
def test_a_value_error_of_another_library_is_not_the_users(folder, monkeypatch, fault):
    monkeypatch.setattr("dsmgp.data.unknown_inputs.mixture_at", fault)
    done = run("evaluate", folder / "price.dsmgp", folder / "test.parquet", code=1)
    assert done.stderr.startswith("error: internal error, ")
    assert "please report it" in done.stderr
    debug = CliRunner().invoke(
        app, ["evaluate", str(folder / "price.dsmgp"), str(folder / "test.parquet"), "--debug"]
    )
    assert isinstance(debug.exception, ValueError)


def test_a_value_error_inside_our_own_code_is_the_users_only_if_we_raise_it(folder, monkeypatch):
    """Arrays of different shapes that meet in a module of ours are a fault of ours."""
    monkeypatch.setattr(
        "dsmgp.data.columns.encoding.level_codes", lambda *_: np.zeros(7, dtype=int)
    )
    done = run("evaluate", folder / "price.dsmgp", folder / "test.parquet", code=1)
    assert done.stderr.startswith("error: internal error, ValueError")


@pytest.mark.parametrize("error", [NotFactorisedError(), TableError("x is empty")])
def test_an_error_of_a_class_of_ours_is_the_users_wherever_it_is_raised(folder, monkeypatch, error):
    """It may come from another process, without a traceback."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr("dsmgp.data.unknown_inputs.mixture_at", fail)
    done = run("evaluate", folder / "price.dsmgp", folder / "test.parquet", code=2)
    assert done.stderr.splitlines()[-1] == f"error: {error}"


def test_every_error_about_what_was_given_is_of_the_class_that_the_command_line_knows():
    """Or the command line would report a mistake of the user as an internal error."""
    for path in Path(dsmgp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                assert not ast.unparse(node.exc).startswith("ValueError"), (path, node.lineno)


NAMES = ("fit", "predict", "evaluate", "report", "info", "demo", "reproduce")


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_examples_whose_options_exist(name):
    text = run(name, "--help", env={"COLUMNS": "160"}).stdout
    after = text.split("Examples:")[1].split("╭")[0]
    examples = [line for line in after.splitlines() if f"dsmgp {name}" in line]
    assert len(examples) >= 2
    options = typer.main.get_command(app).commands[name].params
    known = {option for parameter in options for option in parameter.opts}
    assert set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", " ".join(examples))) <= known


def test_help_has_no_types_of_a_programmer():
    assert {command.callback.__name__ for command in app.registered_commands} == set(NAMES)
    for name in NAMES:
        text = run(name, "--help", env={"COLUMNS": "160"}).stdout
        assert not re.search(r"<(str|bool|path|int|float|list)\b|\b(BOOLEAN|INTEGER|FLOAT)\b", text)


def test_fit_ends_with_a_verdict_and_the_next_command(folder, tmp_path):
    arguments = ["fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m.dsmgp",
                 "--effort", "low", "--kernel", "matern52", "--max-iter", "10", "--force"]  # fmt: skip
    numbers = json.loads(run(*arguments, "--json").stdout)
    (rmse,), (constant,) = numbers["loo_rmse"], numbers["constant_rmse"]
    assert rmse < 0.5 * constant
    done = run(*arguments)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    verdict = lines[lines.index("verdict") :]
    assert verdict[1] == (
        f"accuracy leave-one-out RMSE {rmse:.4g}, {1 - rmse / constant:.0%} below that of a constant ({constant:.4g})"
    )
    share = numbers["loo_coverage_90"][0]
    assert verdict[2].startswith(
        f"calibration 90% intervals cover {share:.1%} of the rows left out"
    )
    assert verdict[3] == f"remarks {len(numbers['remarks'])}, see above"
    assert f"dsmgp report {tmp_path / 'm.dsmgp'} " in done.stderr.splitlines()[-1]
    assert "next" not in run(*arguments, "--quiet").stderr


def test_the_verdict_of_change_points_says_what_is_not_known(folder, tmp_path):
    done = run("fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m.dsmgp", "--feature", "sold",
               "--changes-along", "sold", "--kernel", "rbf", "--max-iter", "2")  # fmt: skip
    assert done.stdout.count("evaluate the model on rows that it has not seen") == 2


@pytest.mark.parametrize("name", ["predict", "report"])
def test_progress_of_predictions_and_reports_grows_to_the_end(folder, tmp_path, name):
    heard = []
    with listening(Listener(lambda share, text: heard.append(share))):
        run(name, folder / "price.dsmgp", folder / "test.parquet", "-o", tmp_path / "out.html" if name == "report" else tmp_path / "out.csv")  # fmt: skip
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1.0)
    assert len(heard) >= 5


def test_the_version_is_printed():
    assert run("--version").stdout == f"dsmgp {dsmgp.__version__}\n"


def test_completion_can_be_installed():
    assert "--install-completion" in run("--help").output


def test_an_interrupt_that_falls_into_a_remark_ends_nothing(monkeypatch, capfd):
    class Busy:
        """A stream that is being written to: Python refuses to enter it again."""

        def write(self, text):
            raise RuntimeError("reentrant call")

        flush = isatty = write

    with interruptible(quiet=True, save=True) as listener:
        monkeypatch.setattr(sys, "stderr", Busy())
        signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
    monkeypatch.undo()
    assert listener.stopping
    assert "finishing with the best found so far" in capfd.readouterr().err


@pytest.mark.parametrize("save", [True, False])
def test_an_interrupt_saves_the_best_model_so_far_on_request(tmp_path, save):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(600, 4))
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.assign(y=np.sin(9 * X[:, 0]) + 0.1 * rng.normal(size=600)).to_csv(
        tmp_path / "rows.csv", index=False
    )
    # Slow on purpose, so that the interrupt falls into the search; a shell may have this run with Ctrl-C ignored.
    command = [
        sys.executable, "-c",
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from dsmgp.fitting.learning import optimize as learn\n"
        "tick = learn.tick\n"
        "def slow(f):\n"
        "    print('learning', file=sys.stderr, flush=True); time.sleep(0.2); tick(f)\n"
        "learn.tick = slow\n"
        "from dsmgp.cli.app import main; main()",
        "fit", tmp_path / "rows.csv", "-t", "y", "-o", tmp_path / "m.dsmgp", "--effort", "low",
        "--on-interrupt", "save" if save else "abort",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        seen = 0
        for line in process.stderr:
            seen += line.startswith("learning")
            if seen == 3:
                break
        process.send_signal(signal.SIGINT)
        stderr = process.stderr.read()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    if save:
        assert "finishing with the best found so far" in stderr
        model = dsmgp.load(tmp_path / "m.dsmgp")
        assert model.n_evaluations_ < 30
        assert np.isfinite(model.predict(frame[:5])).all()
    else:
        assert "interrupted; nothing was written" in stderr
        assert not (tmp_path / "m.dsmgp").exists()


@pytest.mark.parametrize("place", ["dsmgp.cli.app", "rich.console", "dsmgp.regressor"])
def test_an_interrupt_while_it_starts_is_one_line(tmp_path, place):
    """Ctrl-C falls into an import: of the command line, or of what a command needs."""
    script = f"""
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {place!r}:
            raise KeyboardInterrupt
        return None
sys.meta_path.insert(0, Interrupting())
from dsmgp.cli.__main__ import main
main()
"""
    command = [sys.executable, "-c", script, "evaluate", tmp_path / "m.dsmgp", "rows.csv"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr.startswith("interrupted")
    assert len(done.stderr.splitlines()) == 1


def test_an_interrupt_before_a_command_begins_is_one_line(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.invoke", interrupted)
    assert run("info", "m.dsmgp", code=130).stderr == "interrupted\n"


# Folders of Parquet files


def test_a_folder_of_files_is_fitted_and_predicted_out_of_core(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    x = np.linspace(0, 1, 600)
    data = tmp_path / "data"
    data.mkdir()
    for k in range(3):
        part = x[k::3]
        table = pa.table({"x": part, "kind": np.where(part > 0.5, "a", "b"), "y": np.sin(6 * part)})
        parquet.write_table(table, data / f"{k}.parquet")
    model, out = tmp_path / "model", tmp_path / "out.parquet"
    fit = ["fit", str(data), "--target", "y", "--out", str(model), "--leaf-size", "100", "--json"]
    assert json.loads(run(*fit).stdout)["rows"] == 600
    assert "with a model in it" in run(*fit, code=2).stderr
    run("predict", str(model), str(data / "*.parquet"), "--out", str(out), "--keep", "x")
    predictions = parquet.read_table(out).to_pandas()
    assert list(predictions) == ["x", "y_mean", "y_std", "y_low_90", "y_high_90"]
    assert np.abs(predictions["y_mean"] - np.sin(6 * predictions["x"])).max() < 0.05
    run("predict", str(model), str(data / "0.parquet"), "--out", str(tmp_path / "one.csv"))
    assert json.loads(run("info", str(model), "--json").stdout)["rows"] == 600
    assert "give --out" in run("predict", str(model), str(data), code=2).stderr


# Remarks on encoded and imputed columns


@pytest.fixture(scope="module")
def gappy(tmp_path_factory):
    """A table with a category, dates and values that are missing, as a file and as a folder, and a model of it."""
    folder = tmp_path_factory.mktemp("gappy")
    n = 60
    frame = pd.DataFrame(
        {
            "x": np.linspace(0, 1, n),
            "kind": np.where(np.arange(n) % 2, "a", "b"),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n), "D"),
        }
    )
    frame["y"] = np.sin(6 * frame["x"])
    frame.loc[3:5, "x"] = np.nan
    frame.loc[7, "when"] = pd.NaT
    frame.to_csv(folder / "rows.csv", index=False)
    (folder / "rows").mkdir()
    for k in range(2):
        frame[k::2].to_parquet(folder / "rows" / f"{k}.parquet")
    run("fit", folder / "rows.csv", "-t", "y", "-o", folder / "m.dsmgp", *IMPUTE)
    return folder


IMPUTE = ("--missing", "impute", "--effort", "low", "--kernel", "rbf", "--max-iter", "2")
FILLED = "column 'x': 3 missing values, filled with the median of the training rows, 0.525424, and marked by an indicator"


def test_imputed_values_are_reported_by_predict_evaluate_and_report(gappy, undrawn):
    model, rows = gappy / "m.dsmgp", gappy / "rows.csv"
    done = run("predict", model, rows, "-o", gappy / "out.csv")
    assert FILLED in done.stderr
    assert "column 'when': 1 missing value, filled with the median of the training rows, 2020-01-31" in done.stderr  # fmt: skip
    assert FILLED in run("report", model, rows, "-o", gappy / "r.html").stderr
    assert "<td>when</td><td>2020-01-01</td>" in (gappy / "r.html").read_text()
    done = run("evaluate", model, rows, "--json")
    assert FILLED in done.stderr
    assert FILLED in json.loads(done.stdout)["remarks"]


def test_the_encoding_of_a_folder_of_files_is_reported(gappy):
    done = run("fit", gappy / "rows", "-t", "y", "-o", gappy / "model", *IMPUTE, "--json")
    remarks = json.loads(done.stdout)["remarks"]
    assert "column 'kind': 2 levels, one-hot encoded" in remarks
    assert "column 'when': dates, as days since 2020-01-01" in remarks
    assert any(remark.startswith("column 'x': 3 missing") for remark in remarks)
    assert all(remark in done.stderr for remark in remarks)
    done = run("predict", gappy / "model", gappy / "rows", "-o", gappy / "out.parquet")
    assert "column 'x': 3 missing" in done.stderr


@pytest.mark.parametrize("levels", [["01", "02", "A"], ["True", "False", "Unknown"]])
def test_levels_are_read_as_they_are_written(tmp_path, levels):
    n = 30
    frame = pd.DataFrame({"x": np.arange(n), "c": np.resize(levels, n), "y": np.arange(n) % 7})
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame[frame["c"] != levels[-1]].to_csv(tmp_path / "new.csv", index=False)
    run("fit", tmp_path / "train.csv", "-t", "y", "-o", tmp_path / "m.dsmgp", *IMPUTE)
    run("predict", tmp_path / "m.dsmgp", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert len(pd.read_csv(tmp_path / "out.csv")) == 20
    run("evaluate", tmp_path / "m.dsmgp", tmp_path / "new.csv")
