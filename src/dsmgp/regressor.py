"""The scikit-learn face of the model: rows come and go in its shapes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gpytorch
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dsmgp.breaking import BreakingModel
from dsmgp.breaks import ChangePoints, has_breaks
from dsmgp.fit import fit
from dsmgp.fit_breaks import fit_breaks
from dsmgp.mixture import Mixture
from dsmgp.model import Model
from dsmgp.parameters import checked
from dsmgp.settings import Settings
from dsmgp.splits import ChangePoint, Splits
from dsmgp.summary import summarise
from dsmgp.summary_breaks import summarise_breaks
from dsmgp.timeline import dates_as_numbers, numbers_like
from dsmgp.tree import Node, Sum
from dsmgp.validation import (
    check_count,
    check_finite,
    input_number,
    random_generator,
    refuse_text,
)

__all__ = ["DSMGPRegressor"]

Array = NDArray[np.float64]


class DSMGPRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian-process regression that scales: a deep structured mixture of GPs.

    The input space is partitioned in several random ways, and every part has a GP of its own (Trapp et al.,
    AISTATS 2020). The partitions are averaged: by default with weights that follow how sure each leaf is
    at a row, or exactly, by their posterior probabilities.

    Parameters
    ----------
    kernel : str or gpytorch.kernels.Kernel, default="auto"
        ``"rbf"``, ``"matern12"``, ``"matern32"``, ``"matern52"``, ``"rq"``, ``"periodic"``, each with a length-scale per
        input and an output scale, a sum of them such as ``"matern32+periodic"``, or any GPyTorch kernel (a bare one gets an output scale), whose
        constraints and priors are kept. ``"auto"`` tries the first four and keeps the one with the best
        leave-one-out score.
    mean : str or gpytorch.means.Mean, default="zero"
        ``"zero"``, ``"constant"``, ``"linear"``, or any GPyTorch mean.
    noise_variance : float, optional
        Where the search for the noise variance starts, or its value with ``optimizer=None``. Like the
        kernel's parameters it is in the units the experts see: those of the standardised outputs,
        or of the outputs themselves with ``standardize=False``.
    structure : {"balanced", "paper", "changepoint"}, ChangePoints or a tree, default="balanced"
        Compact leaves of like size, the paper's Algorithm 1, or a tree of
        :class:`~dsmgp.tree.Sum`, :class:`~dsmgp.tree.Product` and :class:`~dsmgp.tree.Leaf` built by hand,
        in the units of X. ``"changepoint"``: rows in order along one input, cut at any number of places; all
        segmentations are averaged exactly. :class:`~dsmgp.breaks.ChangePoints` says along which input, how often,
        and whether there are outliers. Weights are then always the posterior's.
    leaf_size : int, sequence of int or "auto", default="auto"
        M, the most rows in a leaf. A list gives one size per partition (balanced only).
        ``"auto"``: several sizes by ``effort`` (balanced), or 100 (paper).
    sum_children : int or "auto", default="auto"
        K_S, partitions that a sum node averages. ``"auto"``: one for each size, or 8 if there is one
        size only (balanced); 4 (paper).
    product_children : int, optional
        K_P, parts that a product makes: 2 (balanced) or ``ceil((N / M) ** (1 / R))`` (paper).
    depth : int, optional
        R, layers of sum nodes: 1 (balanced) or 2 (paper).
    weights : {"gated", "posterior", "uniform"}, default="gated"
        How the leaves that a row reaches are weighed. ``"gated"``: by how sure each of them is there, fitted by
        leave-one-out (:mod:`dsmgp.gate`). ``"posterior"``: exact Bayesian model averaging, as in the
        paper. ``"uniform"``: the prior's equal weights.
    local_scale : bool, optional
        Whether every leaf scales its variance by its own leave-one-out residuals. On with gated weights
        and off with others unless given.
    effort : {"low", "medium", "high"}, default="medium"
        What "auto" may cost: sizes and number of the leaves, and rows used for learning.
    optimizer : {"lbfgs", "adam", "rmsprop"} or None, default="lbfgs"
        How hyperparameters are learned. None keeps kernel and noise as given and only conditions.
    objective : {"surrogate", "full"}, default="surrogate"
        Learn on one partition, as the paper does, or go on from there on the evidence of the whole
        mixture.
    max_iter : int, optional
        Most iterations of the optimiser: 60 (lbfgs), 300 (adam), 1000 (rmsprop).
    n_restarts : int, default=0
        Further searches from random starts; the best is kept.
    standardize : bool, default=True
        Whether inputs and outputs are standardised inside.
    device : str, default="auto"
        A torch device; ``"auto"`` is the GPU if there is one.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the experts.
    memory_limit : int or str, optional
        Bytes, or text such as ``"4GB"``, that matrices may take.
    random_state : int, RandomState, Generator or None
        Seeds everything random.
    verbose : bool, default=False
        Show progress on standard error.

    Attributes
    ----------
    tree_ : Sum, Product or Leaf
        The structure, in the units of X. Leaves list the numbers of their training rows.
    posterior_weights_ : dict of Sum to ndarray
        Posterior probability of each sum node's children.
    kernel_, noise_ : gpytorch kernel and float
        As learned, in the units the experts see. Several outputs: a list of each; where outputs were rotated
        they belong to the components, and ``output_loading_`` says how these make up the outputs.
    output_loading_ : ndarray of shape (n_outputs, n_outputs)
        ``y = centre + output_loading_ @ z``, with z what the experts see.
    log_marginal_likelihood_ : float
        Log evidence of y, in its own units, under the mixture.
    loo_score_, loo_score_new_inputs_ : float
        Mean negative log predictive density of training rows, each given all others, and each given all rows
        of other inputs. Estimates of the score on new rows like these, and at new inputs.
    kernel_scores_ : dict of str to float, or None
        Leave-one-out scores of the kernels that ``kernel="auto"`` tried, in the units the experts see;
        lower is better.
    n_induced_trees_ : int
        How many partitions the mixture averages over.
    n_iter_ : int
        Iterations that the optimiser took, of the output that took most.
    n_evaluations_ : int
        Evaluations of the evidence and its gradient, each on some of the leaves; trials of kernels and units count.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, size=(300, 1))
    >>> y = np.sin(X[:, 0]) + (X[:, 0] > 1) + 0.1 * rng.normal(size=300)
    >>> model = DSMGPRegressor(leaf_size=100, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[0.0], [2.0]], return_std=True)
    >>> mean.round(1), std.round(1)
    (array([0. , 1.9]), array([0.1, 0.1]))
    >>> low, high = model.predict_dist([[0.0]]).interval(0.9)
    >>> bool(low < 0.0 < high)
    True
    """

    def __init__(
        self,
        kernel: str | gpytorch.kernels.Kernel = "auto",
        mean: str | gpytorch.means.Mean = "zero",
        noise_variance: float | None = None,
        structure: str | ChangePoints | Node = "balanced",
        leaf_size: int | Sequence[int] | str = "auto",
        sum_children: int | str = "auto",
        product_children: int | None = None,
        depth: int | None = None,
        weights: str = "gated",
        local_scale: bool | None = None,
        effort: str = "medium",
        optimizer: str | None = "lbfgs",
        objective: str = "surrogate",
        max_iter: int | None = None,
        n_restarts: int = 0,
        standardize: bool = True,
        device: str = "auto",
        dtype: str = "float64",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: bool = False,
    ) -> None:
        self.kernel = kernel
        self.mean = mean
        self.noise_variance = noise_variance
        self.structure = structure
        self.leaf_size = leaf_size
        self.sum_children = sum_children
        self.product_children = product_children
        self.depth = depth
        self.weights = weights
        self.local_scale = local_scale
        self.effort = effort
        self.optimizer = optimizer
        self.objective = objective
        self.max_iter = max_iter
        self.n_restarts = n_restarts
        self.standardize = standardize
        self.device = device
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> DSMGPRegressor:
        """Grow the tree, learn the hyperparameters and condition every leaf.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            Columns of dates (pandas, polars, NumPy) become days since the first of them.
        y : array-like of shape (n_rows,) or (n_rows, n_outputs)

        Returns
        -------
        self
        """
        with _unchanged_on_error(self), _progress(self.verbose):
            settings = checked(self)
            X, y = self._training_rows(X, y)
            rng = random_generator(self.random_state)
            names = getattr(self, "feature_names_in_", None)
            settings = _numbered(settings, X.shape[1], names)
            run = fit_breaks if has_breaks(settings.structure) else fit
            fitted = run(X, y.reshape(len(y), -1), settings, rng)
            self._model = fitted.model
            self._learned = fitted.learned
            self.n_evaluations_ = fitted.n_evaluations
            self.loo_score_ = fitted.loo_score
            self.loo_score_new_inputs_ = fitted.loo_score_new_inputs
            self.kernel_scores_ = fitted.kernel_scores or None
            self._squeeze = y.ndim == 1
        return self

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool = True,
    ) -> Array | tuple[Array, Array]:
        """Mean of the predictive law, and its standard deviation or joint covariance.

        Parameters
        ----------
        X : array-like or frame of shape (n, n_features)
        return_std, return_cov : bool
            At most one of them.
        include_noise : bool
            Whether spread is that of a new observation y, or of the function f.

        Returns
        -------
        mean : ndarray of shape (n,) or (n, n_outputs)
        std : ndarray of the same shape, with ``return_std``
        cov : ndarray of shape (n, n) or (n, n, n_outputs), with ``return_cov``
        """
        if return_std and return_cov:
            raise ValueError("expected at most one of return_std and return_cov, got both")
        X = self._test_rows(X)
        if return_cov:
            mean, covariance = self._model.covariance(X, include_noise)
            return self._shaped(mean), self._shaped(np.moveaxis(covariance, 0, -1))
        if return_std:
            mean, std = self._model.moments(X, include_noise)
            return self._shaped(mean), self._shaped(std)
        return self._shaped(self._model.mean(X))

    def predict_dist(self, X: ArrayLike, include_noise: bool = True) -> Mixture:
        """The whole predictive law: at each row a mixture of Gaussians.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> law = DSMGPRegressor(random_state=0).fit(X, X[:, 0] ** 2).predict_dist([[0.5]])
        >>> law.mean.round(2)
        array([0.25])
        """
        X = self._test_rows(X)
        return self._model.mixture(X, include_noise, self._squeeze)

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
        include_noise: bool = False,
    ) -> Array:
        """Joint draws: functions at the rows of X, (n, n_samples) or (n, n_outputs, n_samples)."""
        check_count("n_samples", n_samples)
        X = self._test_rows(X)
        rng = random_generator(random_state)
        draws = self._model.draws(X, n_samples, rng, include_noise)
        return draws[:, 0, :] if self._squeeze else draws

    def split_posterior(self, dimension: int | str = 0) -> Splits:
        """Where the model breaks along an input: the posterior over positions of changes, or of cuts.

        With ``structure="changepoint"`` it is the exact posterior probability of a change in every gap between two
        rows. With other structures it is that of the cuts among the partitions that were drawn: where the
        data favour some of them, they mark breaks; where no partition is favoured, they mark nothing.

        Parameters
        ----------
        dimension : int or str
            The input, by number or name.

        Returns
        -------
        Splits
            Gaps (``low``, ``high``), the expected number of changes in each (``probability``), ``density(x)``,
            ``within(low, high)``, ``expected``.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> y = (X[:, 0] > 0.5) + 0.05 * np.random.default_rng(0).normal(size=60)
        >>> model = DSMGPRegressor("rbf", structure="changepoint").fit(X, y)
        >>> bool(model.split_posterior().within(0.45, 0.55) > 0.9)
        True
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        number = input_number(dimension, self.n_features_in_, names)
        return replace(self._model.split_posterior(number), dates=self._dates.get(number))

    def changepoints(
        self, level: float = 0.5, dimension: int | str | None = None
    ) -> list[ChangePoint]:
        """Changes that are at least so probable, in order of position.

        Parameters
        ----------
        level : float
            Posterior probability that a change must have.
        dimension : int or str, optional
            The input; the one that orders the rows with ``structure="changepoint"``, else the first.

        Returns
        -------
        list of ChangePoint
            ``position``, ``low`` and ``high`` (the shortest run of gaps that holds ``level``), ``probability``.
        """
        check_is_fitted(self)
        if dimension is None:
            dimension = getattr(self._model, "dimension", 0)
        return self.split_posterior(dimension).change_points(level)

    def summary(self) -> str:
        """What was learned, in the user's units: relevance of inputs, noise, tree, evidence."""
        check_is_fitted(self, "_model")
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            names = [f"x{k}" for k in range(self.n_features_in_)]
        if isinstance(self._model, BreakingModel):
            return summarise_breaks(self._model, list(names), self.kernel_scores_)
        scores = (self.loo_score_, self.loo_score_new_inputs_)
        return summarise(self._model, list(names), scores, self.kernel_scores_)

    @property
    def tree_(self) -> Node:
        return self._fitted.tree

    @property
    def posterior_weights_(self) -> dict[Sum, Array]:
        log_weights = self._fitted.posterior.log_weights
        return {node: np.exp(log_weight) for node, log_weight in log_weights.items()}

    @property
    def kernel_(self) -> gpytorch.kernels.Kernel | list[gpytorch.kernels.Kernel]:
        kernels = [process.kernel for process in self._fitted.processes]
        return kernels[0] if len(kernels) == 1 else kernels

    @property
    def noise_(self) -> float | list[float]:
        noises = [process.noise for process in self._fitted.processes]
        return noises[0] if len(noises) == 1 else noises

    @property
    def output_loading_(self) -> Array:
        return self._fitted.outputs.loading

    @property
    def log_marginal_likelihood_(self) -> float:
        return self._fitted.log_evidence

    @property
    def n_iter_(self) -> int:
        self._fitted  # noqa: B018  # hasattr answers no before fit
        return max((found.n_iterations for found in self._learned), default=0)

    @property
    def n_induced_trees_(self) -> int:
        return self._fitted.n_induced_trees

    @property
    def _fitted(self) -> Model:
        if "_model" not in self.__dict__:  # so that hasattr answers no before fit
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._model

    def __sklearn_is_fitted__(self) -> bool:
        return "_model" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def _shaped(self, values: Array) -> Array:
        return values[..., 0] if self._squeeze else values

    def _training_rows(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        if y is None:
            raise ValueError("this estimator requires y to be passed, but the target y is None")
        X, self._dates = dates_as_numbers(X)
        refuse_text(X, "X")
        refuse_text(y, "y")
        # Sums over columns depend, in their last digits, on how rows lie in memory: always the same way.
        checks = {"dtype": np.float64, "order": "C", "ensure_all_finite": False}
        checked_X, checked_y = validate_data(
            self,
            X,
            y,
            validate_separately=(
                {**checks, "accept_sparse": False, "ensure_min_samples": 2},
                {
                    **checks,
                    "ensure_2d": False,
                    "allow_nd": True,
                    "ensure_min_samples": 0,
                    "ensure_min_features": 0,
                },
            ),
        )
        if checked_y.ndim not in (1, 2) or 0 in checked_y.shape[1:]:
            raise ValueError(f"expected y with one or two dimensions, got shape {checked_y.shape}")
        if len(checked_y) != len(checked_X):
            raise ValueError(
                f"expected as many values of y as rows of X, got {len(checked_y)} and "
                f"{len(checked_X)}: inconsistent numbers of samples"
            )
        check_finite(checked_X, "X", getattr(self, "feature_names_in_", None))
        check_finite(checked_y, "y")
        return checked_X, checked_y

    def _test_rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        X = numbers_like(X, self._dates, getattr(self, "feature_names_in_", None))
        refuse_text(X, "X")
        checked = validate_data(
            self, X, dtype=np.float64, order="C", reset=False, ensure_all_finite=False
        )
        check_finite(checked, "X", getattr(self, "feature_names_in_", None))
        return checked


def _numbered(settings: Settings, n_inputs: int, names: Sequence[str] | None) -> Settings:
    """The input that orders rows by its number."""
    asked = settings.structure
    if not isinstance(asked, ChangePoints):
        return settings
    dimension = input_number(asked.dimension, n_inputs, names)
    return replace(settings, structure=replace(asked, dimension=dimension))


@contextmanager
def _unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Whatever goes wrong inside, the estimator is left as it was."""
    before = estimator.__dict__.copy()
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise


@contextmanager
def _progress(verbose: bool) -> Iterator[None]:
    """Send what the library logs to standard error for the time of a fit."""
    if not verbose:
        yield
        return
    logger = logging.getLogger("dsmgp")
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter("dsmgp: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
