"""The methods that benchmarks compare: ours and the peers, all called alike.

A method takes X (n, inputs), Y (n, outputs), X_test and a seed, and answers with the predictive law at the test rows and
notes on the way there, among them the seconds that fitting and predicting took. Data come standardised.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator

import gpytorch
import numpy as np
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from dsmgp import DSMGPRegressor, Mixture
from harness import generated, n_cores, now, on_gpu, seconds_of, synchronise

Array = np.ndarray
Answer = tuple[Mixture, dict]
Method = Callable[[Array, Array, Array, int], Answer]
Predict = Callable[[Array], tuple[Array, Array]]  # rows to means and standard deviations
Fit = Callable[[Array, Array, int], Predict]  # X, one output, seed


def gaussian(mean: Array, std: Array) -> Mixture:
    """A peer's Gaussian prediction as a law of one component; NaN for the standard deviations that a point prediction lacks."""
    mean, std = mean.reshape(len(mean), -1), std.reshape(len(std), -1)
    return Mixture(np.ones((len(mean), 1)), mean[:, None], std[:, None] ** 2, squeeze=False)


def answer(model: DSMGPRegressor, X: Array, Y: Array, X_test: Array) -> Answer:
    start = now()
    model.fit(X, Y)
    fitted = now()
    law = model.predict_dist(X_test)
    return law, {
        **seconds_of(start, fitted, "fit"),
        **seconds_of(fitted, now(), "predict"),
        "n_evaluations": model.n_evaluations_,
        "loo": model.loo_score_,
        "loo_new_inputs": model.loo_score_new_inputs_,
        "kernel_scores": model.kernel_scores_,
    }


def ours(effort: str, **options) -> Method:
    def run(X, Y, X_test, seed):
        return answer(DSMGPRegressor(effort=effort, random_state=seed, **options), X, Y, X_test)

    return run


def per_output(fit: Fit) -> Method:
    """A peer of one output, fitted to each."""

    def run(X, Y, X_test, seed):
        start = now()
        fitted = [fit(X, y, seed) for y in Y.T]
        synchronise()
        middle = now()
        parts = [predict(X_test) for predict in fitted]
        note = seconds_of(start, middle, "fit") | seconds_of(middle, now(), "predict")
        return gaussian(*(np.column_stack([p[k] for p in parts]) for k in (0, 1))), note

    return run


def in_parts(predict: Predict, n_rows: int) -> Predict:
    """Predictions of so many rows at a time, for peers that would build a matrix over all of them."""

    def run(X):
        parts = [predict(part) for part in np.array_split(X, 1 + len(X) // n_rows)]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    return run


def sklearn_gp(X, y, seed) -> Predict:
    """Exact, on 2,000 rows at most."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    rows = np.random.default_rng(seed).permutation(len(X))[:2000]
    kernel = ConstantKernel() * Matern(np.ones(X.shape[1]), nu=1.5) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, alpha=0.0, random_state=seed).fit(X[rows], y[rows])
    return in_parts(lambda X_test: model.predict(X_test, return_std=True), 5000)


def boosted_quantiles(regressor: Callable) -> Fit:
    """Boosted trees: the mean by squares, the spread from the 5% and 95% quantiles.

    ``regressor(seed, quantile)`` is a model yet to be fitted; the quantile is None where the loss is the default, squares.
    """

    def fit(X, y, seed):
        mean, low, high = (regressor(seed, q).fit(X, y) for q in (None, 0.05, 0.95))

        def predict(X_test):
            width = np.maximum(high.predict(X_test) - low.predict(X_test), 1e-3)
            return mean.predict(X_test), width / (2 * 1.6449)

        return predict

    return fit


def hist_boosting(seed: int, quantile: float | None):
    from sklearn.ensemble import HistGradientBoostingRegressor

    options = {} if quantile is None else {"loss": "quantile", "quantile": quantile}
    return HistGradientBoostingRegressor(random_state=seed, **options)


def hist_boosting_mean(X, y, seed) -> Predict:
    """The mean alone, one model instead of three: its standard deviations are NaN."""
    model = hist_boosting(seed, None).fit(X, y)

    def predict(X_test):
        mean = model.predict(X_test)
        return mean, np.full_like(mean, np.nan)

    return predict


def lightgbm(seed: int, quantile: float | None):
    from lightgbm import LGBMRegressor

    options = {} if quantile is None else {"objective": "quantile", "alpha": quantile}
    return LGBMRegressor(random_state=seed, n_jobs=n_cores(), verbose=-1, **options)


def catboost(X, y, seed) -> Predict:
    """The default loss, RMSE, which gives a mean only: its standard deviations are NaN."""
    model = catboost_model(seed).fit(X, y)

    def predict(X_test):
        mean = model.predict(X_test)
        return mean, np.full_like(mean, np.nan)

    return predict


def catboost_uncertainty(X, y, seed) -> Predict:
    """Mean and variance by maximum likelihood, the loss that CatBoost has for uncertainty; its mean is not the default's."""
    model = catboost_model(seed, loss_function="RMSEWithUncertainty").fit(X, y)

    def predict(X_test):
        mean, variance = model.predict(X_test, prediction_type="RMSEWithUncertainty").T
        return mean, np.sqrt(variance)

    return predict


def catboost_model(seed: int, **options):
    from catboost import CatBoostRegressor

    # Its own default counts the cores of the machine, not those that the process may use.
    return CatBoostRegressor(
        random_seed=seed, thread_count=n_cores(), verbose=0, allow_writing_files=False, **options
    )


def ngboost(X, y, seed) -> Predict:
    from ngboost import NGBRegressor

    model = NGBRegressor(n_estimators=500, verbose=False, random_state=seed).fit(X, y)

    def predict(X_test):
        law = model.pred_dist(X_test)
        return law.loc, law.scale

    return predict


def gpboost(X, y, seed) -> Predict:
    """A Vecchia approximation of 30 neighbours."""
    import gpboost as gpb

    model = gpb.GPModel(
        gp_coords=X, cov_function="matern_ard", cov_fct_shape=1.5, gp_approx="vecchia",
        num_neighbors=30, likelihood="gaussian",
    )  # fmt: skip
    model.fit(y=y)

    def predict(X_test):
        found = model.predict(gp_coords_pred=X_test, predict_var=True, predict_response=True)
        return found["mu"], np.sqrt(found["var"])

    return predict


def _prior(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
    return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def _give_prior(model: gpytorch.models.GP, n_dims: int) -> None:
    matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=n_dims)
    model.mean_module = gpytorch.means.ConstantMean()
    model.covar_module = gpytorch.kernels.ScaleKernel(matern)


class Variational(gpytorch.models.ApproximateGP):
    def __init__(self, points: torch.Tensor) -> None:
        law = CholeskyVariationalDistribution(len(points))
        super().__init__(VariationalStrategy(self, points, law, learn_inducing_locations=True))
        _give_prior(self, points.shape[1])

    forward = _prior


class Exact(gpytorch.models.ExactGP):
    def __init__(self, X: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
        _give_prior(self, X.shape[1])

    forward = _prior


def svgp(
    n_inducing: int = 1024,
    epochs: int = 30,
    least_steps: int = 0,
    rate: float = 0.01,
    most_seconds: float = math.inf,
) -> Fit:
    """GPyTorch's variational GP, by Adam on batches of 1024 rows; small data are gone through until ``least_steps``.

    With ``least_steps`` the rate falls to zero along a cosine, so that the end does not depend on the last batches.
    """

    def fit(X, y, seed):
        torch.manual_seed(seed)
        Xt, yt = _tensors(X, y)
        model = Variational(Xt[torch.randperm(len(Xt))[:n_inducing]].clone()).to(Xt.device)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(Xt.device)
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(Xt))
        optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=rate)
        n_epochs = max(epochs, math.ceil(least_steps / math.ceil(len(Xt) / 1024)))
        n_steps = n_epochs * math.ceil(len(Xt) / 1024)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
        end = time.perf_counter() + most_seconds
        for rows in (rows for _ in range(n_epochs) for rows in torch.randperm(len(Xt)).split(1024)):
            if time.perf_counter() > end:
                break
            optimizer.zero_grad()
            loss = -bound(model(Xt[rows]), yt[rows])
            loss.backward()
            optimizer.step()
            if least_steps:
                falling.step()
        return _gpytorch_predict(model, likelihood, Xt, 4096)

    return fit


def exact_gp(cholesky: bool = False, n_steps: int = 50) -> Fit:
    """GPyTorch's exact GP by its own recipe: Adam, rate 0.1, 50 steps."""

    def fit(X, y, seed):
        for _, predict in exact_gp_steps(X, y, seed, cholesky, n_steps):  # noqa: B007
            pass
        return predict()

    return fit


def exact_gp_steps(
    X: Array, y: Array, seed: int, cholesky: bool, n_steps: int
) -> Iterator[tuple[float, Callable[[], Predict]]]:
    """After every step: seconds of training so far, and how to get the prediction then.

    Evidence and gradient come by conjugate gradients, GPyTorch's way beyond 800 rows, or by ``cholesky``. Predictions
    are always exact: a Cholesky factor in double precision.
    """
    torch.manual_seed(seed)
    Xt, yt = _tensors(X, y)
    model = Exact(Xt, yt).to(Xt.device)
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    limit = gpytorch.settings.max_cholesky_size
    spent = 0.0

    def prediction() -> Predict:
        frozen = copy.deepcopy(model).double()
        frozen.set_train_data(Xt.double(), yt.double(), strict=False)
        return _gpytorch_predict(frozen, frozen.likelihood, Xt.double(), 2000)

    for _ in range(n_steps):
        start = time.perf_counter()
        with warnings.catch_warnings(), limit(len(X) if cholesky else limit.value()):
            warnings.simplefilter("ignore")
            optimizer.zero_grad()
            loss = -bound(model(Xt), yt)
            loss.backward()
            optimizer.step()
        synchronise()
        spent += time.perf_counter() - start
        yield spent, prediction


def _tensors(*arrays: Array) -> list[torch.Tensor]:
    device = "cuda" if on_gpu() else "cpu"
    return [torch.tensor(a, dtype=torch.float32, device=device) for a in arrays]


def _gpytorch_predict(model, likelihood, like: torch.Tensor, n_rows: int) -> Predict:
    model.eval(), likelihood.eval()

    def predict(X):
        with torch.no_grad(), gpytorch.settings.max_cholesky_size(10**9):
            law = likelihood(model(torch.from_numpy(X).to(like)))
            return law.mean.cpu().double().numpy(), law.stddev.cpu().double().numpy()

    return in_parts(predict, n_rows)


METHODS: dict[str, Method] = {
    "dsmgp": ours("medium"),
    "dsmgp-low": ours("low"),
    "dsmgp-high": ours("high"),
    "sklearn-2000": per_output(sklearn_gp),
    "hist-boosting": per_output(boosted_quantiles(hist_boosting)),
    "hist-boosting-mean": per_output(hist_boosting_mean),
    "lightgbm": per_output(boosted_quantiles(lightgbm)),
    "catboost": per_output(catboost),
    "catboost-uncertainty": per_output(catboost_uncertainty),
    "ngboost": per_output(ngboost),
    "gpboost": per_output(gpboost),
    "svgp": per_output(svgp()),
    "gpytorch-exact": per_output(exact_gp()),
    "gpytorch-cholesky": per_output(exact_gp(cholesky=True)),
}


def warm_up(method: Method, n_outputs: int = 1) -> None:
    """A small run first: what is compiled, loaded or set up once does not count."""
    X, Y, X_test, _ = generated(1500 if on_gpu() else 300, 100, n_outputs)
    method(X, Y, X_test, 0)
