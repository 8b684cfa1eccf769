"""Plots: drawn on the given Axes, with the numbers of the model."""

import subprocess
import sys
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

mpl.use("Agg")
from matplotlib import pyplot as plt
from typer.testing import CliRunner

import dsmgp
from dsmgp import DSMGPRegressor, demo, plots
from dsmgp.cli.app import app
from dsmgp.plots import plot_changepoints, plot_predictive, plot_splits, style
from dsmgp.plots import structure as structure_plots
from dsmgp.plots.predictive import _averaged
from dsmgp.plots.relevance import relevance
from dsmgp.report import report_html
from dsmgp.tree.nodes import leaves


@pytest.fixture
def step(rng):
    X = np.sort(rng.uniform(-1, 1, size=(80, 1)), axis=0)
    y = (X[:, 0] > 0.1) + 0.05 * rng.normal(size=80)
    model = DSMGPRegressor(
        "rbf", structure="paper", leaf_size=20, sum_children=30, product_children=2, depth=1,
        random_state=0,
    )  # fmt: skip
    return model.fit(X, y), X, y


def test_plot_predictive_shows_mean_interval_and_rows(step):
    model, X, y = step
    _, ax = plt.subplots()
    assert plot_predictive(model, X, y, ax=ax) is ax
    labels = [line.get_label() for line in ax.get_lines()]
    assert "mean" in labels
    assert "90% interval" in labels
    assert "rows" in labels
    mean = ax.get_lines()[labels.index("mean")]
    np.testing.assert_allclose(mean.get_ydata(), model.predict(mean.get_xdata()[:, None]))
    assert len(ax.images) == 1
    plt.close("all")


def test_split_probabilities_add_up_and_find_the_step(step):
    model, _, _ = step
    splits = model.split_posterior(0)
    assert (np.diff(splits.position) >= 0).all()
    assert splits.expected == pytest.approx(1.0)  # each of the 30 products cuts once
    assert abs(splits.position[np.argmax(splits.probability)] - 0.1) < 0.1
    with pytest.raises(ValueError, match="input"):
        model.split_posterior(1)
    ax = plot_splits(model)
    assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(1.0)
    plt.close("all")


def test_only_one_input_can_be_drawn(wavy):
    X, y = wavy
    model = DSMGPRegressor(hypotheses=None, max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match="one input"):
        plot_predictive(model, X)


def test_only_one_output_can_be_drawn_over_its_input(wavy):
    X, y = wavy
    model = DSMGPRegressor("rbf", max_iter=2).fit(X[:, :1], np.column_stack([y, y]))
    with pytest.raises(ValueError, match="one output, got 1 and 2; use plot_dependence"):
        plot_predictive(model, X[:, :1])


@pytest.fixture(scope="module")
def uneven():
    """Two inputs, of which the second matters little; more noise where the first is large."""
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 1, size=(200, 2))
    y = np.sin(8 * X[:, 0]) + 0.1 * X[:, 1] + (0.02 + 0.3 * (X[:, 0] > 0.5)) * rng.normal(size=200)
    return DSMGPRegressor("rbf", leaf_size=40, max_iter=20, random_state=0).fit(X, y), X, y


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_every_method_draws_on_the_given_axes_and_returns_them(uneven):
    model, X, y = uneven
    arguments = {
        "plot_dependence": (X,),
        "plot_calibration": (X, y),
        "plot_observed": (X, y),
        "plot_pit": (X, y),
        "plot_residuals": (X, y),
        "plot_kernels": None,  # of lists of kernels only
        "plot_predictive": None,  # one input only: above
    }
    for name in plots.__all__:
        given = arguments.get(name, ())
        if given is not None:
            _, ax = plt.subplots()
            assert getattr(model, name)(*given, ax=ax) is ax
            assert getattr(model, name)(*given) is not ax
    assert all(hasattr(model, name) for name in plots.__all__)


@pytest.mark.parametrize("name", plots.__all__)
def test_every_function_is_a_method(name):
    assert getattr(DSMGPRegressor, name) is getattr(plots, name)


def test_without_matplotlib_the_remedy_is_named():
    code = """
import sys
sys.modules["matplotlib"] = None
import numpy as np
from dsmgp import DSMGPRegressor
X = np.linspace(0, 1, 20)[:, None]
model = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X, X[:, 0])
try:
    model.plot_tree()
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "plots need matplotlib; pip install 'dsmgp[plots]'\n"


def line(ax, label):
    return next(each for each in ax.get_lines() if each.get_label() == label)


def test_partial_dependence_is_the_average_of_predictions(uneven):
    model, X, _ = uneven
    ax = model.plot_dependence(X[:50], feature=0, n_points=7)
    shown = line(ax, "average of the means")
    for x, mean in zip(*shown.get_data(), strict=True):
        rows = X[:50].copy()
        rows[:, 0] = x
        assert mean == pytest.approx(model.predict(rows).mean(), abs=1e-6)
    width = np.ptp([line(ax, "90% interval").get_ydata(), ax.get_lines()[2].get_ydata()], axis=0)
    assert width[-1] > 2 * width[0]  # where there is more noise


def test_the_interval_of_a_warped_dependence_is_around_its_mean(rng):
    """The rows' other input moves predictions over four orders of magnitude; means are averaged after the warp."""
    X = np.column_stack([rng.choice([0.0, 1.0, 2.0], 60), rng.uniform(0, 9, 60)])
    y = np.exp(X[:, 1] + 0.2 * X[:, 0] + 0.1 * rng.normal(size=60))
    model = DSMGPRegressor("rbf", output_warp="log", hypotheses=None, max_iter=10, random_state=0)
    averaged, means = _averaged(model.fit(X, y), X, [0], np.array([[0.0], [1.0], [2.0]]), 0)
    low, high = averaged.interval(0.9)
    assert (low < means).all()
    assert (means < high).all()
    np.testing.assert_allclose(averaged.mean, means, rtol=0.01)
    assert (low > 0).all()
    plain = DSMGPRegressor("rbf", output_warp=None, hypotheses=None, max_iter=2).fit(X, y)
    averaged, means = _averaged(plain, X, [0], np.array([[0.0], [1.0], [2.0]]), 0)
    np.testing.assert_allclose(averaged.mean, means)


def test_relevance_of_a_model_with_change_points(rng):
    X = rng.uniform(size=(60, 1))
    model = DSMGPRegressor("rbf", structure="changepoint").fit(X, X[:, 0] > 0.5)
    np.testing.assert_array_equal(relevance(model), [1.0])


def test_relevance_finds_the_input_that_matters(uneven):
    model, _, _ = uneven
    relevances = relevance(model)
    assert relevances[0] == 1.0
    assert relevances[1] < 0.5
    bars = model.plot_relevance().patches
    assert [bar.get_width() for bar in bars] == pytest.approx(sorted(relevances))


def test_relevance_weighs_leaves_by_their_mixture_weights_and_own_length_scales(uneven):
    pytest.importorskip("gpytorch")  # whose modules have the length scales
    _, X, y = uneven
    model = DSMGPRegressor(
        "rbf", leaf_size=[40, 100], weights="posterior", max_iter=10, random_state=0
    ).fit(X, y)
    model.finetune(max_iter=5, parameters=["lengthscale"], rounds=1)
    fitted, all_leaves = model.state_.model, list(leaves(model.tree_))
    # Posterior weights are the same all over a leaf, so they count with the share of rows in it.
    weight = np.exp(fitted.posterior.log_responsibilities)
    weight *= [leaf.n_rows / len(X) for leaf in all_leaves]
    assert weight.sum() == pytest.approx(1.0)
    rates = [
        1 / model.to_gpytorch(k).covar_module.base_kernel.lengthscale.detach().numpy()[0]
        for k in range(len(all_leaves))
    ]
    assert np.std(rates, axis=0).min() > 0
    expected = weight @ np.array(rates)
    np.testing.assert_allclose(relevance(model), expected / expected.max(), rtol=1e-6)
    gated = DSMGPRegressor("rbf", leaf_size=40, max_iter=3, random_state=0).fit(X, y)
    assert gated.state_.model.leaf_weights(X).sum() == pytest.approx(1.0)


def test_calibration_shows_the_share_of_rows_inside(uneven):
    model, X, y = uneven
    levels, shares = line(model.plot_calibration(X, y), "this model").get_data()
    low, high = model.predict_dist(X).interval(levels[49])
    assert shares[49] == pytest.approx(np.mean((low <= y) & (y <= high)))


def test_pit_bars_have_area_one(uneven):
    model, X, y = uneven
    bars = model.plot_pit(X, y, n_bins=8).patches[:8]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(1.0)


def test_residuals_are_observed_less_predicted(uneven):
    model, X, y = uneven
    predicted, residual = line(model.plot_residuals(X, y), "rows").get_data()
    np.testing.assert_allclose(predicted, model.predict(X))
    np.testing.assert_allclose(residual, y - model.predict(X))


def test_observations_are_plotted_against_predictions(uneven):
    model, X, y = uneven
    predicted, observed = line(model.plot_observed(X, y), "rows").get_data()
    np.testing.assert_allclose(predicted, model.predict(X))
    np.testing.assert_array_equal(observed, y)


def test_dependence_is_drawn_only_where_there_is_data(rng):
    x = np.concatenate([rng.uniform(0, 1, 60), rng.uniform(4, 5, 60)])
    X = np.column_stack([x, rng.uniform(size=120), rng.integers(1, 4, 120)])
    model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, np.sin(x))
    shown = line(model.plot_dependence(X, 0), "average of the means")
    position, means = shown.get_data()
    assert np.isnan(means[(position > 1.5) & (position < 3.5)]).all()
    assert np.isfinite(means[(position < 1) | (position > 4)]).all()
    # Beyond the training rows nothing is known, whatever rows are given.
    far = line(model.plot_dependence(X + 100, 0), "average of the means")
    np.testing.assert_array_equal(far.get_xdata(), position)
    few = line(model.plot_dependence(X, 2), "average of the means")
    np.testing.assert_array_equal(few.get_xdata(), [1, 2, 3])


def test_legends_hide_nothing(uneven):
    """They stand above the plot."""
    model, X, y = uneven
    for ax in (
        model.plot_dependence(X), model.plot_pit(X, y), model.plot_residuals(X, y),
        model.plot_calibration(X, y), model.plot_observed(X, y), model.plot_learning(),
    ):  # fmt: skip
        ax.figure.canvas.draw()
        box = ax.get_legend().get_window_extent()
        assert box.y0 >= ax.get_window_extent().y1 - 1
        assert box.y1 <= ax.figure.bbox.y1 + 1


def test_new_figures_have_the_style_of_the_package_and_others_keep_theirs(uneven):
    model, _, _ = uneven
    _, given = plt.subplots()
    assert not model.plot_relevance().spines["top"].get_visible()
    assert model.plot_relevance(ax=given).spines["top"].get_visible()
    assert mpl.rcParams["axes.spines.top"]


def simulated(colour, matrix):
    """A colour as people with a kind of colour blindness see it (Machado et al. 2009, severity 1)."""
    return np.clip(np.array(matrix) @ mpl.colors.to_rgb(colour), 0, 1)


@pytest.mark.parametrize(
    "matrix",
    [
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],  # protanopia
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],  # deuteranopia
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],  # tritanopia
    ],
)
def test_colours_of_series_differ_for_everyone(matrix):
    seen = [simulated(colour, matrix) for colour in style.SERIES]
    apart = [np.linalg.norm(a - b) for k, a in enumerate(seen) for b in seen[:k]]
    assert min(apart) > 0.12


def test_learning_falls_to_the_best(uneven):
    model, _, _ = uneven
    lines = model.plot_learning().get_lines()
    assert lines
    assert all((np.diff(each.get_ydata()) <= 0).all() for each in lines)


def test_the_title_of_a_large_tree_says_that_nodes_are_left_out(uneven, monkeypatch):
    model, _, _ = uneven
    assert "not shown" not in model.plot_tree().get_title()
    monkeypatch.setattr(structure_plots, "MAX_NODES", 10)
    assert "not shown" in model.plot_tree().get_title()


def test_wrong_inputs_are_named(uneven):
    model, X, _ = uneven
    with pytest.raises(ValueError, match=r"unknown input 'x2': expected one of 'x0', 'x1'"):
        model.plot_dependence(X, "x2")
    with pytest.raises(
        ValueError, match=r"expected the number of an input, 0..1, or its name, got 5"
    ):
        model.plot_splits(5)


def test_plots_before_fit_are_an_error():
    with pytest.raises(AttributeError, match="not fitted"):
        DSMGPRegressor().plot_tree()


def test_changes_are_marked_where_they_are(rng):
    X = np.linspace(0, 1, 60)[:, None]
    y = (X[:, 0] > 0.4) + 0.05 * rng.normal(size=60)
    model = DSMGPRegressor("rbf", structure="changepoint", max_iter=8).fit(X, y)
    _, ax = plt.subplots()
    assert plot_changepoints(model, ax=ax) is ax
    (line,) = ax.get_lines()
    assert abs(line.get_xdata()[0] - 0.4) < 0.02
    assert len(ax.collections[0].get_segments()) == 59
    plt.close("all")


def test_dates_are_shown_as_dates(rng):
    frame = pd.DataFrame({"when": pd.date_range("2021-03-01", periods=80, freq="D")})
    y = (np.arange(80) > 30) + 0.1 * rng.normal(size=80)
    model = DSMGPRegressor("rbf", structure="changepoint", max_iter=5).fit(frame, y)
    figure, axes = plt.subplots(3)
    plot_predictive(model, frame, y, ax=axes[0], n_points=40)
    plot_splits(model, "when", ax=axes[1])
    plot_changepoints(model, ax=axes[2])
    figure.canvas.draw()
    for ax in axes:
        shown = [text.get_text() for text in ax.get_xticklabels()]
        assert any(text.startswith("2021-04") for text in shown), shown
    plt.close("all")


def test_plots_of_predictions_do_not_condition_leaves_again_after_partial_fit(rng, monkeypatch):
    frame = pd.DataFrame({"when": pd.date_range("2021-03-01", periods=60, freq="D")})
    y = np.sin(np.arange(60) / 9)
    model = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(frame[:50], y[:50])
    model.partial_fit(frame[50:], y[50:])
    # The posterior over splits needs every leaf conditioned on its present rows; the dates of the axis do not.
    monkeypatch.setattr(DSMGPRegressor, "split_posterior", None)
    model.plot_predictive(frame, y, n_points=20)
    model.plot_dependence(frame, "when", n_points=5)


@pytest.mark.slow
def test_the_demo_writes_its_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    demo.main()
    printed = capsys.readouterr().out
    assert str(tmp_path / "out" / "demo.png") in printed
    assert (tmp_path / "out" / "demo.png").stat().st_size > 10_000
    names = ("DSMGP", "exact GP (scikit-learn)", "linear model")
    lines = [line for line in printed.splitlines() if line.startswith(names)]
    nlpd = [float(line.split()[-2]) for line in lines]
    assert len(nlpd) == 3
    assert nlpd == sorted(nlpd)


@pytest.fixture(scope="module")
def sold(tmp_path_factory):
    """A model of a table with text and dates, whose target has a name, as the command line fits it."""
    folder = tmp_path_factory.mktemp("sold")
    rng = np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Graz", "Linz", "Wien"], n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
        }
    )
    frame["price"] = 5.0 * (frame["city"] == "Wien") + 0.1 * rng.normal(size=n)
    frame.to_csv(folder / "rows.csv", index=False)
    arguments = ["fit", folder / "rows.csv", "-t", "price", "-o", folder / "m.dsmgp", "--kernel", "rbf",
                 "--effort", "low", "--max-iter", "10"]  # fmt: skip
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0
    model = dsmgp.load(folder / "m.dsmgp")
    return model, frame[["city", "day"]], frame["price"].to_numpy()


def test_a_categorical_column_is_drawn_level_by_level(sold):
    """Its inputs belong together: a row with two cities, or none, is far from all training rows."""
    model, X, _ = sold
    ax = model.plot_dependence(X, "city")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["Graz", "Linz", "Wien"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("city", "price")
    labels = [line.get_label() for line in ax.get_lines()]
    means = ax.get_lines()[labels.index("average of the means")].get_ydata()
    np.testing.assert_allclose(means, [0, 0, 5], atol=0.3)
    low, high = ax.collections[0].get_segments()[2][:, 1]
    assert low < means[2] < high < low + 3


def test_a_report_draws_categories_level_by_level(sold):
    text = report_html(*sold, targets=["price"])
    assert "price along city." in text
    assert "price along city=" not in text


def test_plots_name_the_target_and_have_a_legend(uneven):
    model, X, y = uneven
    named = DSMGPRegressor("rbf", max_iter=2, random_state=0)
    named.fit(pd.DataFrame(X, columns=["a", "b"])[["a"]], pd.Series(y, name="height"))
    ax = named.plot_predictive(pd.DataFrame(X[:, :1], columns=["a"]), y)
    assert ax.get_ylabel() == "height"
    for drawn in (ax, model.plot_dependence(X), model.plot_pit(X, y), model.plot_residuals(X, y)):
        assert drawn.get_legend().get_texts()


@pytest.mark.parametrize("days", [900, 2])
def test_dates_of_an_axis_do_not_overlap(days):
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.linspace(0, days, 50), "D")
    X = pd.DataFrame({"when": when})
    model = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X, np.sin(np.arange(50) / 9))
    figure = plt.figure(figsize=(5.2, 3.1), layout="constrained")
    ax = model.plot_predictive(X, ax=figure.add_subplot())
    figure.canvas.draw()
    low, high = ax.get_xlim()
    shown = [t.label1.get_window_extent() for t in ax.xaxis.get_major_ticks() if low <= t.get_loc() <= high]  # fmt: skip
    assert len(shown) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(shown))
