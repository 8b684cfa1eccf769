"""Rows outside the training data: their distance, the variance there, and how it is calibrated."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from dsmgp import DSMGPRegressor, load
from dsmgp.fitting.outside import edge_blocks
from dsmgp.fitting.outside.edge_blocks import BLOCKS, left_out_blocks
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.mixture.edges import MEASURED, RISE, Edges

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 1.0, size=(300, 2))
Y = np.sin(5.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=300)
FAR = np.array([[0.5, 0.5], [1.3, 0.5], [-0.2, 0.4], [0.5, 1.5], [2.0, -1.0]])


@pytest.fixture(scope="module")
def model():
    return DSMGPRegressor("rbf", leaf_size=[60, 150], random_state=0).fit(X, Y)


def as_it_was(model):
    """The same model without edges."""
    other = DSMGPRegressor(**model.get_params())
    other._state = replace(model.state_, model=replace(model.state_.model, edges=None))
    return other


def widened(model, jump=0.7, growth=(0.4, 0.2)):
    """The same model with a given factor of variances."""
    edges = replace(model.state_.model.edges, jump=jump, growth=np.array(growth))
    other = DSMGPRegressor(**model.get_params())
    other._state = replace(model.state_, model=replace(model.state_.model, edges=edges))
    return other


@pytest.mark.parametrize(
    "settings", [{}, {"input_warp": "rank"}, {"input_warp": "both"}, {"metric": "full"}]
)
def test_the_distance_is_that_of_the_kernel_to_the_nearest_row_inside(settings):
    model = DSMGPRegressor("rbf", random_state=0, **settings).fit(X, Y)
    inputs, kernel = model.state_.model.inputs, model.kernel_
    inside = np.clip(FAR, X.min(axis=0), X.max(axis=0))
    k = np.diag(kernel(inputs.to_experts(FAR), inputs.to_experts(inside)))
    expected = np.sqrt(-2.0 * np.log(k / kernel.outputscale))
    np.testing.assert_allclose(model.predict_dist(FAR).outside, expected, atol=1e-6)
    assert (model.predict_dist(X).outside == 0.0).all()


def test_nothing_changes_inside_bit_for_bit(model):
    wide, plain = widened(model), as_it_was(model)
    for each in (wide, model):
        assert np.array_equal(each.predict(X, return_std=True), plain.predict(X, return_std=True))
        assert np.array_equal(each.predict_dist(X).logpdf(Y), plain.predict_dist(X).logpdf(Y))
        assert np.array_equal(each.sample_y(X[:9], 3), plain.sample_y(X[:9], 3))
        assert np.array_equal(each.noise_at(X), plain.noise_at(X))


def test_means_stay_and_variances_grow_with_the_distance(model):
    wide, plain = widened(model), as_it_was(model)
    scales = model.state_.model.edges.unit * model.state_.model.inputs.scale
    away = (FAR - np.clip(FAR, X.min(axis=0), X.max(axis=0))) / scales
    d = np.sqrt((away**2).sum(axis=1))
    measured = np.minimum(np.abs(away), MEASURED * np.ptp(X, axis=0) / scales)
    factor = 1.0 + 0.7 * d / (d + RISE) + measured**2 @ [0.4, 0.2]
    before, after = (each.predict_dist(FAR) for each in (plain, wide))
    np.testing.assert_allclose(after.mean, before.mean)
    np.testing.assert_allclose(
        after.component_variances, before.component_variances * factor[:, None, None]
    )
    np.testing.assert_allclose(wide.noise_at(FAR), plain.noise_at(FAR) * factor)


def test_all_predictions_agree_outside(model):
    wide = widened(model)
    distribution = wide.predict_dist(FAR)
    mean, std = wide.predict(FAR, return_std=True)
    covariance = wide.predict(FAR, return_cov=True)[1]
    np.testing.assert_allclose(std, distribution.std)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), distribution.std)
    np.testing.assert_allclose(mean, distribution.mean)
    drawn = wide.sample_y(FAR, 20_000, include_noise=True)
    np.testing.assert_allclose(drawn.std(axis=1), distribution.std, rtol=0.05)


def test_the_factor_begins_at_one():
    edges = Edges(np.zeros(1), np.ones(1), np.ones(1), 3.0, np.array([5.0]))
    scaling = DSMGPRegressor("rbf", standardize=False).fit(X[:5, :1], Y[:5]).state_.model.inputs
    near = edges.variance_factor(np.array([[1.0 + 1e-9], [0.3]]), scaling)
    np.testing.assert_allclose(near, 1.0, atol=1e-6)
    assert edges.variance_factor(np.array([[1.0], [0.0]]), scaling) is None


def test_blocks_are_left_out_as_by_a_fit_without_them(model):
    fitted = model.state_.model
    _, squares = left_out_blocks(fitted, fitted.edges, X, Y[:, None], None, np.ones(len(X)))
    Z, z = fitted.to_experts(X), fitted.outputs.to_experts(Y[:, None])[:, 0]
    kernel = ConstantKernel(model.kernel_.outputscale) * RBF(model.kernel_.lengthscale)
    gp = GaussianProcessRegressor(kernel + WhiteKernel(model.noise_), optimizer=None)
    # One by one, for the scale: the diagonal of the inverse has them all.
    inverse = np.linalg.inv(gp.kernel(Z))
    scale = np.mean((inverse @ z) ** 2 / np.diag(inverse))
    expected = []
    examined = np.argsort(-np.ptp(Z, axis=0) / model.kernel_.lengthscale)
    for j in examined:
        for side in (1, -1):
            for share in BLOCKS:
                order = np.argsort(side * X[:, j])
                n = int(share * len(X))
                block, rest = np.sort(order[len(X) - n :]), order[: len(X) - n]
                mean, std = gp.fit(Z[rest], z[rest]).predict(Z[block], return_std=True)
                expected.append((z[block] - mean) ** 2 / std**2 / scale)
    np.testing.assert_allclose(squares, np.concatenate(expected), rtol=1e-5)


def test_only_a_covariance_that_cannot_be_factorised_leaves_blocks_out(model, monkeypatch):
    fitted = model.state_.model
    given = fitted, fitted.edges, X, Y[:, None], None, np.ones(len(X))

    def fail(*_):
        raise error

    monkeypatch.setattr(edge_blocks, "cholesky", fail)
    error = NotFactorisedError()
    assert left_out_blocks(*given) is None
    error = np.linalg.LinAlgError("a fault")
    with pytest.raises(np.linalg.LinAlgError, match="a fault"):
        left_out_blocks(*given)


def test_a_trend_that_goes_on_widens_predictions_and_a_correct_model_does_not():
    x = np.linspace(0.0, 10.0, 400)[:, None]
    trend = 3.0 * x[:, 0] + 0.2 * RNG.normal(size=400)
    inside = x[:, 0] < 8.0
    # Length scale and output scale are far too short for a trend.
    kernel = Kernel((KernelTerm("matern52", [0.1], 0.05),))
    short = DSMGPRegressor(kernel, noise_variance=0.01, optimizer=None, random_state=0)
    short.fit(x[inside], trend[inside])
    covered = []
    for each in (as_it_was(short), short):
        low, high = each.predict_dist(x[~inside]).interval(0.9)
        covered.append(np.mean((low < trend[~inside]) & (trend[~inside] < high)))
    assert covered[0] < 0.1 < 0.4 < covered[1]
    # Drawn from the very prior that the model has.
    K = np.exp(-0.5 * ((x - x.T) / 1.0) ** 2) + 1e-2 * np.eye(400)
    right = DSMGPRegressor("rbf", input_warp=None, random_state=0)
    right.fit(x, np.linalg.cholesky(K) @ RNG.normal(size=400))
    assert right.state_.model.edges.jump < 1.0
    assert right.state_.model.edges.growth[0] < 0.5


def test_the_growth_ends_where_no_row_could_calibrate_it():
    # On noise alone a slight growth that went on would make predictions a hundred times as wide at fifty ranges.
    rng = np.random.default_rng(1)
    noise = DSMGPRegressor("rbf", random_state=0).fit(
        rng.uniform(size=(100, 1)), rng.normal(size=100)
    )
    assert noise.state_.model.edges.growth[0] > 0
    near, far, further = noise.predict([[1.5], [50.0], [5e6]], return_std=True)[1]
    assert near <= far < 2.0
    assert further == pytest.approx(far, rel=1e-3)


@pytest.mark.parametrize("settings", [{}, {"input_warp": "rank"}, {"metric": "full"}])
def test_extents_are_distances_between_the_ends_of_ranges(settings):
    model = DSMGPRegressor("rbf", random_state=0, **settings).fit(X, Y).state_.model
    for j, extent in enumerate(model.edges.extent(model.inputs)):
        low, high = X[:1].copy(), X[:1].copy()
        low[0, j], high[0, j] = X[:, j].min(), X[:, j].max()
        away = (model.inputs.to_experts(high) - model.inputs.to_experts(low)) / model.edges.unit
        np.testing.assert_allclose(extent, np.linalg.norm(away))


def test_exact_model_averages_stay_exact():
    exact = DSMGPRegressor("rbf", weights="posterior", leaf_size=100, random_state=0).fit(X, Y)
    assert exact.state_.model.edges.growth is None
    assert np.array_equal(exact.predict_dist(FAR).var, as_it_was(exact).predict_dist(FAR).var)
    assert exact.predict_dist(FAR).outside[1] > 0


def test_files_and_updates_keep_edges(model, tmp_path):
    model.save(tmp_path / "model.dsmgp")
    again = load(tmp_path / "model.dsmgp")
    assert np.array_equal(again.predict_dist(FAR).var, model.predict_dist(FAR).var)
    assert np.array_equal(again.predict_dist(FAR).outside, model.predict_dist(FAR).outside)
    again.partial_fit([[1.3, 0.5]], [0.0], adapt=False)
    outside = again.predict_dist(FAR).outside
    assert outside[1] == 0.0
    assert outside[4] < model.predict_dist(FAR).outside[4]
    again.save(tmp_path / "updated.dsmgp")
    assert np.array_equal(load(tmp_path / "updated.dsmgp").predict_dist(FAR).outside, outside)
    again.forget([300], adapt=False)
    np.testing.assert_array_equal(again.predict_dist(FAR).outside, model.predict_dist(FAR).outside)


def test_files_of_earlier_versions_know_their_ranges(model, tmp_path):
    other = as_it_was(model)
    other.save(tmp_path / "old.dsmgp")
    old = load(tmp_path / "old.dsmgp")
    np.testing.assert_array_equal(old.predict_dist(FAR).outside, model.predict_dist(FAR).outside)
    assert np.array_equal(old.predict_dist(FAR).var, other.predict_dist(FAR).var)


def test_change_points_and_hypotheses_have_distances(tmp_path):
    x = np.linspace(0.0, 1.0, 80)[:, None]
    y = (x[:, 0] > 0.5) + 0.1 * np.random.default_rng(1).normal(size=80)
    for settings in ({"structure": "changepoint"}, {"hypotheses": "auto", "effort": "medium"}):
        model = DSMGPRegressor(random_state=0, **settings).fit(x, y)
        outside = model.predict_dist([[0.5], [2.0], [3.0]]).outside
        assert outside[0] == 0.0 < outside[1] < outside[2]
        model.save(tmp_path / "model.dsmgp")
        again = load(tmp_path / "model.dsmgp").predict_dist([[0.5], [2.0], [3.0]])
        np.testing.assert_array_equal(again.outside, outside)


def test_rows_in_files_have_the_range_of_all_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": Y}), tmp_path / "rows.parquet")
    model = DSMGPRegressor("rbf", leaf_size=60, random_state=0)
    model.fit_dataset(tmp_path / "rows.parquet", "y", store=tmp_path / "store")
    edges = model.state_.model.edges
    np.testing.assert_array_equal(edges.low, X.min(axis=0))
    assert edges.growth is not None
    again = load(tmp_path / "store").state_.model
    np.testing.assert_array_equal(again.edges.high, X.max(axis=0))
    np.testing.assert_array_equal(again.edges.growth, edges.growth)
    np.testing.assert_array_equal(again.outside(FAR), model.state_.model.outside(FAR))
