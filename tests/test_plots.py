"""Pictures: drawn on the Axes given, showing what the model says."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

mpl.use("Agg")
from matplotlib import pyplot as plt

from dsmgp import DSMGPRegressor, demo
from dsmgp.plots import plot_changepoints, plot_predictive, plot_splits


@pytest.fixture
def step(rng):
    X = np.sort(rng.uniform(-1, 1, size=(80, 1)), axis=0)
    y = (X[:, 0] > 0.1) + 0.05 * rng.normal(size=80)
    model = DSMGPRegressor(
        "rbf", structure="paper", leaf_size=20, sum_children=30, product_children=2, depth=1,
        random_state=0,
    )  # fmt: skip
    return model.fit(X, y), X, y


def test_the_predictive_picture_shows_mean_interval_and_rows(step):
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
    positions, probabilities = model._model.splits(0)
    assert (np.diff(positions) >= 0).all()
    assert probabilities.sum() == pytest.approx(1.0)  # each of the 30 products cuts once
    assert abs(positions[np.argmax(probabilities)] - 0.1) < 0.1
    ax = plot_splits(model)
    assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(1.0)
    plt.close("all")


def test_only_one_input_can_be_drawn(wavy):
    X, y = wavy
    model = DSMGPRegressor(max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match="one input"):
        plot_predictive(model, X)


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
