"""What users are told about rows outside the training data."""

import json
import warnings

import numpy as np
import pytest

from dsmgp import DSMGPRegressor, ExtrapolationWarning

pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "date": pd.date_range("2020-01-01", periods=200),
        "size": RNG.uniform(size=200),
        "town": RNG.choice(["a", "b", "c"], 200),
    }
)
FRAME.loc[::20, "size"] = np.nan
Y = np.arange(200) / 50 + FRAME["size"].fillna(0.5) + 0.1 * RNG.normal(size=200)
LATER = FRAME.assign(date=FRAME["date"] + pd.Timedelta(days=200))


@pytest.fixture(scope="module")
def model():
    return DSMGPRegressor("matern52", random_state=0).fit(FRAME, Y)


def test_one_warning_names_share_and_columns(model):
    for predict in (model.predict, model.predict_dist):
        with pytest.warns(ExtrapolationWarning) as caught:
            predict(LATER)
        (warning,) = caught
        assert str(warning.message).startswith(
            "200 of 200 rows (100%) outside the training data: 'date' (200 rows, up to"
        )
        assert warning.filename == __file__


def test_rows_inside_or_a_little_outside_are_no_reason_to_warn(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(FRAME)
        model.predict_dist(FRAME.assign(size=FRAME["size"] * 1.01))
        model.predict(LATER[:1].assign(date=pd.Timestamp("2020-07-19 12:00")))


def test_warnings_can_be_silenced(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ExtrapolationWarning)
        model.predict(LATER)


def test_levels_and_missing_values_are_not_outside(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = model.predict_dist(FRAME.assign(town="z"))
        gone = model.predict_dist(FRAME.assign(size=np.nan, date=pd.NaT))
    assert not new.outside.any()
    assert not gone.outside.any()


def test_distances_stay_with_their_rows(model):
    both = model.predict_dist(pd.concat([FRAME[:3], LATER[:3]]))
    assert not both.outside[:3].any()
    assert both[3:].outside.all()
    np.testing.assert_array_equal(both[-1].outside, both.outside[[-1]])


def test_commands_tell_users(tmp_path, undrawn):
    testing = pytest.importorskip("typer.testing")
    from dsmgp.cli.app import app

    LATER.assign(y=Y).to_csv(tmp_path / "later.csv", index=False)
    fitted = DSMGPRegressor("matern52", random_state=0).fit(FRAME, Y.rename("y"))
    fitted.save(tmp_path / "model.dsmgp")
    expected = "200 of 200 rows (100%) outside the training data: 'date'"
    for command, out in (("predict", "out.csv"), ("evaluate", None), ("report", "page.html")):
        arguments = [command, str(tmp_path / "model.dsmgp"), str(tmp_path / "later.csv"), "--json"]
        arguments += [] if out is None else ["--out", str(tmp_path / out)]
        done = testing.CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert expected in done.stderr
        found = json.loads(done.stdout)
        assert any(remark.startswith(expected) for remark in found["remarks"])
        assert command != "evaluate" or found["outside"] == 1.0
