"""The report: everything on one page, which works without a network, in a real browser."""

import html
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.image import imread

from dsmgp import DSMGPRegressor
from dsmgp.plots.relevance import relevance
from dsmgp.report import report_html, results, write_report
from dsmgp.report.least_certain import least_certain
from dsmgp.report.numbers import number
from dsmgp.scores import coverage, rmse
from tests.support.browser import opened

HEADINGS = [
    "Verdict", "Observed against predicted", "Calibration", "Residuals", "What matters", "Least certain rows",
    "Data", "Model and settings",
]  # fmt: skip


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(150, 2)), columns=["size", "a<b & 'c'"])
    y = np.sin(6 * X["size"]) + (X["size"] > 0.5) + 0.1 * rng.normal(size=150)
    model = DSMGPRegressor("rbf", leaf_size=40, max_iter=10, random_state=0).fit(X[:100], y[:100])
    return model, X[100:], y[100:].to_numpy()


@pytest.fixture(scope="module")
def page(judged, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, *judged, targets=["price"], title="Prices <of> houses")
    return path


class Tags(HTMLParser):
    """Open tags are closed in their order; attributes that would fetch something."""

    def __init__(self):
        super().__init__()
        self.open, self.sources, self.headings = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.sources += [v for k, v in attributes if k in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_the_page_is_complete_and_needs_no_network(page):
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.headings == HEADINGS
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in tags.sources)
    assert not re.search(r"https?://|@import|<script|url\(", text)
    assert "Prices &lt;of&gt; houses" in text
    assert "a&lt;b &amp; &#39;c&#39;" in text


def test_the_page_has_the_scores(judged, page):
    model, X, y = judged
    text = page.read_text()
    assert number(rmse(y, model.predict(X))) in text
    assert f"{coverage(y, model.predict_dist(X)):.1%}" in text


def test_several_outputs_and_kernels_without_length_scales(judged, undrawn):
    _, X, y = judged
    Y = np.column_stack([y, -y])
    kernels = pytest.importorskip("gpytorch").kernels
    kernel = kernels.ScaleKernel(kernels.RBFKernel()) + kernels.LinearKernel()
    model = DSMGPRegressor(kernel, leaf_size=60, max_iter=2, random_state=0).fit(X, Y)
    text = report_html(model, X, Y, targets=["up", "down"])
    assert "down along size" in text
    assert "Relevance of columns" not in text
    with pytest.raises(ValueError, match="a name for each of 2 outputs"):
        report_html(model, X, Y)


def words(text):
    return re.sub(r'base64,[^"]*', "", text)


def test_several_outputs_are_scored_one_by_one(judged):
    _, X, y = judged
    Y = np.column_stack([y, 1000 * y])
    model = DSMGPRegressor("rbf", leaf_size=60, max_iter=2, random_state=0).fit(X, Y)
    text = words(report_html(model, X, Y, targets=["small", "large"]))
    for k, name in enumerate(["small", "large"]):
        assert f'<th class="number">{name}</th>' in text
        assert number(rmse(Y[:, k], model.predict(X)[:, k])) in text
        assert f"90% intervals of {name} cover" in text
        assert f"the RMSE of {name} is" in text
    assert "all targets together" in text


@pytest.mark.parametrize("constant", [True, False])
def test_one_row_or_a_constant_target_give_finite_numbers(judged, constant):
    model, X, y = judged
    if constant:
        y = np.full(50, 3.3)
        model = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X, y)
    else:
        X, y = X[:1], y[:1]
    text = words(report_html(model, X, y))  # numpy's warnings are errors here
    assert not re.search(r"\b(nan|inf)\b", text)
    assert ("about equally certain" in text) == constant


def test_dates_are_shown_as_dates(undrawn):
    when = pd.Series(pd.date_range("2020-01-01", periods=60, freq="D"))
    X = pd.DataFrame({"x": np.linspace(0, 1, 60), "when": when})
    model = DSMGPRegressor("rbf", max_iter=2, random_state=0).fit(X, np.sin(6 * X["x"]))
    text = words(report_html(model, X, np.sin(6 * X["x"])))
    assert "<td>when</td><td>2020-01-01</td><td>2020-01-30 12:00:00</td><td>2020-02-29</td>" in text


@pytest.mark.parametrize("likely", [True, False])
def test_change_points_are_listed(rng, likely, monkeypatch, request):
    if not likely:
        request.getfixturevalue("undrawn")
    monkeypatch.setattr(results, "MAX_CHANGES", 1)
    when = pd.date_range("2021-03-01", periods=90, freq="D")
    t = np.arange(90)
    y = 4.0 * likely * ((t > 30) + 2.0 * (t > 60)) + 0.1 * rng.normal(size=90)
    model = DSMGPRegressor("rbf", structure="changepoint", random_state=0)
    X = pd.DataFrame({"day": when})
    text = report_html(model.fit(X, y), X, y)
    tags = Tags()
    tags.feed(text)
    assert tags.headings == [
        *HEADINGS[:4],
        "Least certain rows",
        "Where the function changes",
        "Remarks",
        *HEADINGS[6:],
    ]
    assert "Rows are ordered by day." in words(text)
    assert "nan" not in words(text)
    if likely:
        assert "2 can be located with a probability of at least 50%, of which the 1 most" in text
        assert (
            text.count("<td>2021-03-31</td><td>2021-04-01</td>")
            + text.count("<td>2021-04-30</td><td>2021-05-01</td>")
            == 1
        )
    else:
        assert "0 can be located with a probability of at least 50%.</p>" in text
    assert "<b>The function.</b>" in text
    assert "fitted to 90 rows with 1 column." in text


def statements(text):
    """The verdict: what each statement is about, its grade and its text."""
    pattern = r'<li class="(\w+)"><div><b>(\w+)</b> .*?</div><div>(.*?)</div></li>'
    return {about: (grade, html.unescape(said)) for grade, about, said in re.findall(pattern, text)}


def test_extrapolation_is_reported_as_it_is(undrawn):
    def statement(model, X, y):
        return statements(report_html(model, X, y))["Range"]

    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(50, 2)), columns=["a", "b"])
    far = pd.concat([X, X[:10] + 50.0])
    signal, noise = np.sin(6 * X["a"]), rng.normal(size=50)
    model = DSMGPRegressor("rbf", max_iter=20, random_state=0).fit(X, signal)
    inside = "All 50 rows lie within the range of the training data."
    assert statement(model, X, signal) == ("good", inside)
    grade, text = statement(model, far, np.zeros(60))
    assert grade == "fair"
    assert "10 of 60 rows (17%) lie outside" in text
    assert "(in a, b)" in text
    assert float(re.search(r"are (\S+) times those of the other rows\.$", text)[1]) > 2
    # With posterior weights variances do not grow beyond the data.
    model.set_params(weights="posterior").fit(X, noise)
    assert "so they do not signal the extrapolation" in statement(model, far, np.zeros(60))[1]


def test_the_verdict_says_what_a_linear_model_would_do(undrawn):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(160, 1)), columns=["a"])
    train, test = slice(0, 100), slice(100, 160)

    def accuracy(y):
        model = DSMGPRegressor("rbf", max_iter=20, random_state=0).fit(X[train], y[train])
        said = statements(report_html(model, X[test], y[test].to_numpy()))["Accuracy"]
        return said[0], said[1].split(":")[0]

    noise = 0.05 * rng.normal(size=160)
    assert accuracy(np.sin(9 * X["a"]) + noise) == ("good", "Clearly better than a linear model")
    grade, text = accuracy(X["a"] + noise)
    assert grade == "fair"
    assert "not clearly better than a linear model" in text
    assert accuracy(pd.Series(rng.normal(size=160))) == (
        "poor",
        "Not clearly better than a constant",
    )


def test_what_matters_are_effects_on_predictions_and_not_length_scales(undrawn):
    """The output varies fast but little along b, and slowly but much along a."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(260, 3)), columns=["unused", "b", "a"])
    y = 10 * X["a"] + np.sin(10 * X["b"]) + 0.01 * rng.normal(size=260)
    settings = {"metric": "diagonal", "input_warp": None, "output_warp": None, "hypotheses": None}
    model = DSMGPRegressor("rbf", max_iter=60, random_state=0, **settings).fit(X[:200], y[:200])
    assert relevance(model).argmax() == 1
    for rows in (slice(200, 260), slice(200, 240)):  # shuffled, and too few for that
        text = report_html(model, X[rows], y[rows].to_numpy())
        assert "the most important first: a, b, unused." in text
        assert "increase of the RMSE" not in text  # the label of an axis, which is a picture
        assert ("Increase of the RMSE" in text) == (rows.stop == 260)
        assert re.findall(r"<b>y along (\w+)\.</b>", text) == ["a", "b", "unused"]


def test_training_rows_are_not_judged_by(undrawn):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(140, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=140)
    model = DSMGPRegressor("rbf", max_iter=20, random_state=0).fit(X[:80], y[:80])

    def grades(rows):
        found = statements(report_html(model, X[rows], y[rows]))
        return next(iter(found)), {about: grade for about, (grade, _) in found.items()}

    first, known = grades(slice(0, 100))
    assert first == "Rows"
    assert known["Rows"] == "poor"
    assert known["Accuracy"] == known["Calibration"] == "not_judged"
    first, few = grades(slice(79, 140))
    assert (first, few["Rows"], few["Accuracy"]) == ("Rows", "fair", "good")
    assert "Rows" not in grades(slice(80, 140))[1]


def test_splits_are_shown_only_where_predictions_use_a_posterior_over_them(judged, undrawn):
    model, X, y = judged
    assert "Where the model splits" not in report_html(model, X, y)
    posterior = DSMGPRegressor(
        "rbf", structure="paper", weights="posterior", leaf_size=40, sum_children=2, max_iter=2,
        random_state=0,
    ).fit(X, y)  # fmt: skip
    assert "Where the model splits" in report_html(posterior, X, y)


def test_settings_that_are_not_the_defaults_come_first(judged, undrawn):
    model, X, y = judged
    text = report_html(model, X, y)
    section = text[text.index("Settings that are not the defaults") : text.index("All settings")]
    changed = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td>", section)
    assert dict(changed) == {
        "kernel": "rbf",
        "leaf_size": "40",
        "max_iter": "10",
    }


def test_the_least_certain_rows_name_the_columns_that_matter(undrawn):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(size=200), "b": rng.uniform(size=200)})
    noise = np.where(X["b"] > 0.5, 1.0, 0.02)
    y = X["a"] + noise * rng.normal(size=200)
    model = DSMGPRegressor(leaf_size=50, effort="low", random_state=0).fit(X[:150], y[:150])
    text = report_html(model, X[150:].reset_index(drop=True), y[150:].to_numpy())
    section = text[text.index('<section id="uncertain">') :]
    first = re.search(r'<td class="text">(\w) = |<td>(\w) = ', section)
    assert "b" in first.groups()


def test_the_least_certain_rows_have_their_numbers_in_the_table(judged):
    """Rows without a target are left out, and the numbers of the others stay."""
    model, X, y = judged
    y = np.where(np.isin(np.arange(len(y)), [0, 7]), np.nan, y)
    rows = least_certain(results.Evaluation.of(model, X, y, ["price"]))["rows"]
    assert len(rows) == 10
    assert [cells[4] for cells in rows] == [number(y[int(cells[0]) - 1]) for cells in rows]


def test_a_browser_shows_it_at_two_widths(page, tmp_path):
    picture = tmp_path / "page"
    for width, seen in zip((1280, 400), opened(page, picture=picture), strict=True):
        assert seen["viewport"] == width
        assert seen["title"] == "Prices <of> houses"
        assert seen["headings"] == HEADINGS
        assert seen["images"] == seen["shown"] >= 6
        assert seen["unlabelled"] == 0
        assert seen["console"] == []
        assert seen["outside"] == []
        assert len(seen["links"]) >= len(HEADINGS)
        assert seen["dangling"] == []
        assert seen["width"] <= seen["viewport"]
        assert seen["beyond"] == []
        assert imread(f"{picture}-{width}.png")[:, :, :3].std() > 0.05  # something was drawn


@pytest.fixture(scope="module", params=["several outputs", "change points"])
def other_page(request, judged, tmp_path_factory):
    """Reports with other sections than that of one output."""
    _, X, y = judged
    if request.param == "several outputs":
        Y, targets = np.column_stack([y, 1000 * y]), ["small", "large, with a name that is long"]
        model = DSMGPRegressor("rbf", leaf_size=60, max_iter=2, random_state=0).fit(X, Y)
    else:
        X, Y, targets = X[["size"]], y, ["level"]
        model = DSMGPRegressor("rbf", structure="changepoint", max_iter=2, random_state=0)
        model.fit(X, Y)
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, model, X, Y, targets=targets)
    return path


@pytest.mark.slow
def test_a_browser_shows_other_reports_at_two_widths(other_page):
    for seen in opened(other_page):
        assert seen["headings"][0] == "Verdict"
        assert seen["images"] == seen["shown"] >= 3
        assert seen["unlabelled"] == 0
        assert seen["console"] == seen["outside"] == seen["dangling"] == seen["beyond"] == []
        assert seen["width"] <= seen["viewport"]


def test_the_page_is_dark_where_the_reader_prefers_that(page, tmp_path):
    picture = tmp_path / "page"
    (seen,) = opened(page, "--dark", "--widths", "900", picture=picture)
    assert seen["dark"]
    assert imread(f"{picture}-900.png")[:, :, :3].mean() < 0.4


@pytest.fixture(scope="module")
def raw():
    """A model of a raw table with a positive target, and rows to evaluate it on, of which some are training rows."""
    rng = np.random.default_rng(0)
    n = 160
    X = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
            "age": rng.normal(size=n),
            "a<b": rng.choice(["red", "blue"], n),
            "same": 1.0,
        }
    )
    y = pd.Series(np.exp(rng.normal(size=n)), name="price")
    model = DSMGPRegressor("rbf", max_iter=2, random_state=0)
    with pytest.warns(UserWarning, match="'same' is constant and left out"):
        model.fit(X[:120], y[:120])
    X, y = X[100:].reset_index(drop=True), y[100:].reset_index(drop=True)
    X.loc[30, "a<b"], X.loc[31, "age"], y[32] = "green", np.nan, np.nan
    return model, X, y


def remarks_on_page(text):
    """The lists of the section of remarks."""
    section = re.search(r'<section id="remarks">.*?</section>', text, re.DOTALL)[0]
    return [
        [html.unescape(item) for item in re.findall("<li>(.*?)</li>", part)]
        for part in section.split("<h3>")[1:]
    ]


@pytest.mark.filterwarnings("ignore:column:UserWarning")
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_the_page_has_the_remarks_on_training_and_evaluation(raw, kind, undrawn):
    model, X, y = raw
    if kind == "polars":
        X, y = pl.from_pandas(X), pl.from_pandas(y)
    text = report_html(model, X, y, targets=["price"])
    training, here = remarks_on_page(text)
    assert training == list(model.state_.schema.remarks)
    assert "column 'same' is constant and left out" in training
    starts = [
        "1 row without a target left out",
        "column 'size': ",
        "column 'age': 1 missing value, filled with the median",
        "column 'a<b': 1 row with levels that the training rows do not have ('green')",
        "20 of 59 rows are training rows",
        "target 'price' is never negative",
    ]
    assert [r.startswith(s) for r, s in zip(here, starts, strict=True)] == [True] * len(starts)
    assert "evaluated here on 59 rows" in text
    assert "nan" not in words(text)
    tags = Tags()
    tags.feed(text)
    assert tags.headings == [*HEADINGS[:6], "Remarks", *HEADINGS[6:]]
    grade, suspicion = statements(text)["Rows"]
    assert grade == "poor"
    assert suspicion.startswith("20 of 59 rows are training rows: ")


def test_rows_that_do_not_fit_together_are_refused(raw):
    model, X, y = raw
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        report_html(model, X, y[:-1])
    with pytest.raises(ValueError, match="expected rows with a target, got none"):
        report_html(model, X[:2], [np.nan, np.nan])


def test_a_category_has_one_line_of_the_table_of_columns(raw, undrawn):
    model, X, y = raw
    text = report_html(model, X[:20], y[:20])
    data = re.search(r'<section id="data">.*?</section>', text, re.DOTALL)[0]
    assert re.findall(r"<tr><td>(.*?)</td>", data) == ["size", "age", "a&lt;b", "y"]
    assert "<td>2 levels</td>" in data
