"""A fitted mixture as a BoTorch model, for Bayesian optimisation with BoTorch's acquisition functions. Needs ``dsmgp[botorch]``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.stochastic_samplers import StochasticSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.regressor import DSMGPRegressor

__all__ = ["DSMGPModel", "MixturePosterior"]

# Step of finite differences, in standard deviations of an input over the training rows.
STEP = 1e-5
# One-sided slopes that differ by more than this factor are taken across an edge between leaves: the smaller one is used.
EDGE = 10.0


class DSMGPModel(Model):  # type: ignore[misc]
    """A fitted :class:`~dsmgp.DSMGPRegressor` with the interface of a BoTorch model.

    Parameters
    ----------
    regressor : DSMGPRegressor
        A fitted estimator.
    posterior_kind : "moments" or "mixture"
        ``"moments"``: a Gaussian with the mixture's joint mean and covariance. It has gradients (by finite
        differences) and works with all acquisition functions, including analytic ones. ``"mixture"``: joint draws from the
        mixture itself, for Monte Carlo acquisition functions. Draws have no gradients, so optimise over
        a list of candidates (``optimize_acqf_discrete``).

    Examples
    --------
    >>> import numpy as np
    >>> from botorch.acquisition import LogExpectedImprovement
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(60, 2))
    >>> y = -((X - 0.3) ** 2).sum(axis=1) + 0.05 * rng.normal(size=60)
    >>> model = DSMGPModel(DSMGPRegressor("rbf", random_state=0).fit(X, y))
    >>> value = LogExpectedImprovement(model, best_f=y.max())
    >>> value(torch.tensor([[[0.3, 0.3]], [[0.9, 0.9]]], dtype=torch.float64)).argmax()
    tensor(0)
    """

    def __init__(self, regressor: DSMGPRegressor, posterior_kind: str = "moments") -> None:
        super().__init__()
        if posterior_kind not in ("moments", "mixture"):
            raise InputError(
                f"expected posterior_kind to be 'moments' or 'mixture', got {posterior_kind!r}"
            )
        regressor.state_  # noqa: B018  # refused before a fit
        self.regressor, self.posterior_kind = regressor, posterior_kind

    @property
    def num_outputs(self) -> int:
        return int(self.regressor.state_.schema.n_outputs)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([])

    @property
    def train_inputs(self) -> tuple[Tensor]:
        return (torch.from_numpy(self.regressor.state_.rows.X),)

    @property
    def train_targets(self) -> Tensor:
        return torch.from_numpy(self.regressor.state_.rows.Y)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Callable[[Posterior], Posterior] | None = None,
        **_: Any,
    ) -> Posterior:
        """Return the joint predictive distribution at the q rows of every batch.

        Parameters
        ----------
        X : tensor of shape (..., q, d)
        output_indices : list of int, optional
            Outputs to predict; all by default.
        observation_noise : bool
            Whether to predict observations rather than f.
        posterior_transform : callable, optional
            Applied to the posterior.
        """
        if isinstance(observation_noise, Tensor):
            raise NotImplementedError(
                "expected observation_noise as a bool, got a tensor: the noise is learned by the model"
            )
        self.eval()
        noise = bool(observation_noise)
        chosen = list(range(self.num_outputs)) if output_indices is None else output_indices
        posterior: Posterior
        if self.posterior_kind == "mixture":
            _refuse_gradients(X)
            posterior = MixturePosterior(self.regressor, X, noise, chosen)
        else:
            mean, covariance = _Moments.apply(X, self.regressor, noise)
            posterior = GPyTorchPosterior(_gaussian(mean, covariance, chosen))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **_: Any) -> DSMGPModel:
        """Return a new model conditioned on further rows; tree, hyperparameters and gate stay the same.

        Parameters
        ----------
        X : tensor of shape (n, d)
        Y : tensor of shape (n, n_outputs)
            A batch dimension, with a model for each entry, is not supported.
        """
        n_dims, n_outputs = self.regressor.n_features_in_, self.num_outputs
        _refuse_batches(X, Y)
        outputs = _numpy(Y).reshape(-1, n_outputs)
        again = copy.copy(self.regressor)  # what was fitted is never changed in place
        again.partial_fit(
            _rows(self.regressor, X.reshape(-1, n_dims)),
            outputs[:, 0] if self.regressor.state_.schema.single_output else outputs,
            adapt=False,
        )
        return DSMGPModel(again, self.posterior_kind)

    def fantasize(self, X: Tensor, *_: Any, **__: Any) -> DSMGPModel:
        """Not supported: it needs a batch of models, one for each draw."""
        raise NotImplementedError(
            "fantasize needs a batch of models, one for each draw, and this is a single model; use an acquisition function "
            "without fantasies, such as qLogExpectedImprovement, or condition_on_observations for one draw at a time"
        )

    def subset_output(self, idcs: list[int]) -> DSMGPModel:
        """Not supported: outputs are learned together."""
        raise NotImplementedError(
            "a model of some of the outputs cannot be made, as all were learned together; give posterior the "
            f"argument output_indices={list(idcs)}, or fit a regressor to these outputs alone"
        )


def _refuse_gradients(X: Tensor) -> None:
    """Raise a clear error, where torch would fail much later."""
    if X.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "draws of posterior_kind='mixture' have no gradients; optimise over a list of candidates "
            "(optimize_acqf_discrete), or use posterior_kind='moments'"
        )


def _refuse_batches(X: Tensor, Y: Tensor) -> None:
    """Raise NotImplementedError for several sets of rows."""
    if X.shape[:-2].numel() > 1 or Y.shape[:-2].numel() > 1:
        raise NotImplementedError(
            f"expected X of shape (n, d) and Y of shape (n, n_outputs), got {tuple(X.shape)} and {tuple(Y.shape)}: a "
            "batch would be as many models, and this is one; condition on one set of rows after the other"
        )


class MixturePosterior(Posterior):  # type: ignore[misc]
    """The mixture at the q rows of every batch, by joint draws without gradients.

    Parameters
    ----------
    regressor : DSMGPRegressor
    X : tensor of shape (..., q, d)
    include_noise : bool
    outputs : list of int
        Outputs to predict.
    """

    def __init__(
        self, regressor: DSMGPRegressor, X: Tensor, include_noise: bool, outputs: list[int]
    ) -> None:
        self.regressor, self.X, self.include_noise = regressor, X.detach(), include_noise
        self.outputs = outputs

    @property
    def device(self) -> torch.device:
        return self.X.device

    @property
    def dtype(self) -> torch.dtype:
        return self.X.dtype

    @property
    def _shape(self) -> torch.Size:
        return torch.Size([*self.X.shape[:-1], len(self.outputs)])

    @property
    def base_sample_shape(self) -> torch.Size:
        return self._shape

    @property
    def batch_range(self) -> tuple[int, int]:
        return (0, -2)

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return sample_shape + self._shape

    @property
    def mean(self) -> Tensor:
        return self._moment("mean")

    @property
    def variance(self) -> Tensor:
        return self._moment("var")

    def _moment(self, name: str) -> Tensor:
        rows = self.X.reshape(-1, self.X.shape[-1])
        predicted = self.regressor.predict_dist(_rows(self.regressor, rows), self.include_noise)
        values = getattr(predicted, name).reshape(len(rows), -1)[:, self.outputs]
        return torch.from_numpy(values).to(self.X).reshape(self._shape)

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Return draws of shape (*sample_shape, ..., q, n_outputs), seeded by torch's generator."""
        shape = torch.Size([1]) if sample_shape is None else sample_shape
        rng = np.random.default_rng(int(torch.randint(2**62, (1,))))
        batches = self.X.reshape(-1, *self.X.shape[-2:])
        drawn = [
            self.regressor.state_.predictive.draws(
                _numpy(batch), shape.numel(), rng, self.include_noise
            )
            for batch in batches
        ]  # each (q, n_outputs, n_samples)
        table = np.moveaxis(np.stack(drawn)[:, :, self.outputs], -1, 0)
        return torch.from_numpy(table.copy()).to(self.X).reshape(self._extended_shape(shape))


@GetSampler.register(MixturePosterior)  # type: ignore[untyped-decorator]
def _sampler(
    posterior: MixturePosterior, sample_shape: torch.Size, *, seed: int | None = None
) -> StochasticSampler:
    return StochasticSampler(sample_shape=sample_shape, seed=seed)


class _Moments(torch.autograd.Function):
    """Joint means (..., q, n_outputs) and covariances (..., n_outputs, q, q), with gradients by finite differences."""

    @staticmethod
    def forward(
        ctx: Any, X: Tensor, regressor: DSMGPRegressor, include_noise: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.regressor, ctx.include_noise = regressor, include_noise
        ctx.save_for_backward(X)
        mean, covariance = _moments(regressor, _numpy(X), include_noise)
        return torch.from_numpy(mean).to(X), torch.from_numpy(covariance).to(X)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (X,) = ctx.saved_tensors
        by_mean, by_covariance = (_numpy(part) for part in gradients)
        rows = _numpy(X)
        spread = ctx.regressor.state_.rows.X.std(axis=0)
        steps = STEP * np.where(spread > 0, spread, 1.0)

        def value(moved: Array) -> Array:
            """Return the function that is differentiated, (...): one number for each batch."""
            mean, covariance = _moments(ctx.regressor, moved, ctx.include_noise)
            return np.asarray(
                (by_mean * mean).sum((-1, -2)) + (by_covariance * covariance).sum((-1, -2, -3))
            )

        here, gradient = value(rows), np.zeros_like(rows)
        for row in range(rows.shape[-2]):
            for column, step in enumerate(steps):
                up, down = rows.copy(), rows.copy()
                up[..., row, column] += step
                down[..., row, column] -= step
                gradient[..., row, column] = _slope(
                    (value(up) - here) / step, (here - value(down)) / step
                )
        return torch.from_numpy(gradient).to(X), None, None


def _slope(ahead: Array, behind: Array) -> Array:
    """Return the average of two one-sided slopes, or the smaller one where the other is across an edge."""
    small = np.where(np.abs(ahead) < np.abs(behind), ahead, behind)
    large = np.where(np.abs(ahead) < np.abs(behind), behind, ahead)
    edge = (np.abs(large) > EDGE * np.abs(small)) & (np.abs(large) > 1e-6)
    return np.where(edge, small, 0.5 * (ahead + behind))


def _moments(regressor: DSMGPRegressor, X: Array, include_noise: bool) -> tuple[Array, Array]:
    *batch, q, d = X.shape
    model, n_outputs = regressor.state_.predictive, regressor.state_.schema.n_outputs
    flat = X.reshape(-1, d)
    if q == 1:
        mean, std = model.moments(flat, include_noise)
        return mean.reshape(*batch, 1, n_outputs), (std**2).reshape(*batch, n_outputs, 1, 1)
    joint = [model.covariance(rows, include_noise) for rows in flat.reshape(-1, q, d)]
    means, covariances = (np.stack(part) for part in zip(*joint, strict=True))
    return means.reshape(*batch, q, n_outputs), covariances.reshape(*batch, n_outputs, q, q)


def _gaussian(mean: Tensor, covariance: Tensor, outputs: list[int]) -> Any:
    """Return a Gaussian over rows for one output, independent ones for several: covariances are within outputs only."""
    normals = [MultivariateNormal(mean[..., k], covariance[..., k, :, :]) for k in outputs]
    if len(normals) == 1:
        return normals[0]
    return MultitaskMultivariateNormal.from_independent_mvns(normals)


def _numpy(X: Tensor) -> Array:
    return np.ascontiguousarray(X.detach().cpu().double().numpy())


def _rows(regressor: DSMGPRegressor, X: Tensor) -> Any:
    """Return rows as the estimator expects them, with column names if it was fitted with some."""
    rows = _numpy(X)
    if not hasattr(regressor, "feature_names_in_"):
        return rows
    import pandas as pd

    return pd.DataFrame(rows, columns=list(regressor.feature_names_in_))
