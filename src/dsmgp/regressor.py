"""The scikit-learn face of the model: rows come and go in its shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin

from dsmgp.breaks import ChangePoints
from dsmgp.changeable import numbered
from dsmgp.drawn import Drawn
from dsmgp.executor import Executor
from dsmgp.frames import OUTPUTS, column_names, framed, kind_of
from dsmgp.guard import progress_shown, unchanged_on_error
from dsmgp.mixture import Mixture
from dsmgp.parameters import checked
from dsmgp.streamed import Streamed
from dsmgp.tree import Node
from dsmgp.updates import Rows
from dsmgp.validation import check_choice, check_count, check_noise, random_generator

__all__ = ["DSMGPRegressor", "load"]

Array = NDArray[np.float64]


class DSMGPRegressor(Drawn, Streamed, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian-process regression that scales: a deep structured mixture of GPs.

    The input space is partitioned in several random ways, and every part has a GP of its own (Trapp et al.,
    AISTATS 2020). The partitions are averaged: by default with weights that follow how sure each leaf is
    at a row, or exactly, by their posterior probabilities.

    Parameters
    ----------
    kernel : str or gpytorch.kernels.Kernel, default="auto"
        ``"rbf"``, ``"matern12"``, ``"matern32"``, ``"matern52"``, ``"rq"``, ``"periodic"``, each with a
        length-scale per input and an output scale, a sum of them such as ``"matern32+periodic"``, or any
        GPyTorch kernel (a bare one gets an output scale), whose constraints and priors are kept. ``"auto"``
        tries the first four and keeps the one with the best leave-one-out score.
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
    executor : {"local", "ray"} or RayExecutor, default="local"
        Where leaves are worked on: on threads or the GPU of this process, or by actors of a Ray cluster
        (``dsmgp[ray]``), which is joined or started. :class:`dsmgp.ray.RayExecutor` says which cluster, how
        many workers and what each may have. Results are the same.
    checkpoint : path, optional
        A file in which a fit writes down how far it has come. If it is cut short, the same fit goes on from
        there and finds the same; at its end the file is removed.
    random_state : int, RandomState, Generator or None
        Seeds everything random.
    verbose : bool, default=False
        Show progress on standard error: a bar with the time left in terminals and notebooks (with
        ``dsmgp[cli]``, which brings rich), else lines of the log ``"dsmgp"``.

    Attributes
    ----------
    tree_ : Sum, Product or Leaf
        The structure, in the units of X. Leaves list the numbers of their training rows.
    posterior_weights_ : dict of Sum to ndarray
        Posterior probability of each sum node's children.
    kernel_, noise_ : gpytorch kernel and float
        As learned, in the units the experts see. Several outputs: a list of each; where outputs were rotated
        they belong to the components, and ``output_loading_`` says how these make up the outputs.
    leaf_noise_ : ndarray of shape (n_leaves,) or (n_leaves, n_outputs)
        Noise variance of each leaf, in the order of ``dsmgp.tree.leaves(tree_)`` and in the units the experts
        see, without the leaf's scale. See :meth:`finetune` and :meth:`noise_at`.
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
    row_ids_ : ndarray of int
        Numbers of the training rows, in order of arrival; ``Leaf.rows`` are places in this list.
    adapted_ : list of str
        What was due, and done, in the last :meth:`partial_fit` or :meth:`forget`.
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
        executor: str | Executor = "local",
        checkpoint: str | Path | None = None,
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
        self.executor = executor
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike, noise: ArrayLike | None = None) -> DSMGPRegressor:
        """Grow the tree, learn the hyperparameters and condition every leaf.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            Columns of dates (pandas, polars, NumPy) become days since the first of them.
        y : array-like of shape (n_rows,) or (n_rows, n_outputs)
        noise : float or array-like of shape (n_rows,) or (n_rows, n_outputs), optional
            Known variances of the measurements, in the units of y squared. They add to the noise that is
            learned; predictions are of observations without them.

        Returns
        -------
        self
        """
        with unchanged_on_error(self), progress_shown(self.verbose):
            settings = checked(self)
            names = column_names(y)
            X, y = self._training_rows(X, y)
            rng = random_generator(self.random_state)
            settings = numbered(settings, X.shape[1], getattr(self, "feature_names_in_", None))
            Y = y.reshape(len(y), -1)
            # Copies: rows may come and go later, and these must still be what they are now.
            rows = Rows.first(X.copy(), Y.copy(), check_noise(noise, Y.shape))
            self._change_to(self._fit(rows, settings, rng))
            self._squeeze, self._target_names = y.ndim == 1, names
            self.__dict__.pop("_table", None)  # of a dataset that it was fitted to before
            self.adapted_: list[str] = []
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
        mean : ndarray of shape (n,) or (n, n_outputs); a series or frame after :meth:`set_output`
        std : of the same kind and shape, with ``return_std``
        cov : ndarray of shape (n, n) or (n, n, n_outputs), with ``return_cov``

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0] ** 2)
        >>> mean, std = model.predict([[0.5], [2.0]], return_std=True)
        >>> bool(std[0] < std[1])  # less is known away from the rows
        True
        """
        if return_std and return_cov:
            raise ValueError("expected at most one of return_std and return_cov, got both")
        given, X = X, self._test_rows(X)
        if return_cov:
            mean, covariance = self._model.covariance(X, include_noise)
            return self._framed(mean, given), self._shaped(np.moveaxis(covariance, 0, -1))
        if return_std:
            mean, std = self._model.moments(X, include_noise)
            return self._framed(mean, given), self._framed(std, given)
        return self._framed(self._model.mean(X), given)

    def set_output(
        self, *, transform: str | None = None, predict: str | None = None
    ) -> DSMGPRegressor:
        """What :meth:`predict` returns: arrays, or frames of pandas or polars.

        Parameters
        ----------
        transform : str, optional
            Ignored; scikit-learn's pipelines pass it to all their steps.
        predict : {"default", "input", "pandas", "polars"}, optional
            ``"default"``: arrays. ``"input"``: a series (several outputs: a frame) of the kind that the rows came in,
            with their index, and arrays for arrays. ``"pandas"`` and ``"polars"``: always that kind. None changes
            nothing.

        Examples
        --------
        >>> import pandas as pd
        >>> X = pd.DataFrame({"x": [0.0, 0.5, 1.0, 1.5]}, index=list("abcd"))
        >>> model = DSMGPRegressor("rbf", random_state=0).set_output(predict="input")
        >>> model.fit(X, X["x"].rename("height")).predict(X[:2]).round(1)
        a    0.0
        b    0.5
        Name: height, dtype: float64
        """
        if predict is not None:
            check_choice("predict", predict, OUTPUTS)
            self._sklearn_output_config = {"predict": predict}  # which scikit-learn's clone keeps
        return self

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
        """Joint draws: functions at the rows of X, (n, n_samples) or (n, n_outputs, n_samples).

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0] ** 2)
        >>> model.sample_y([[0.2], [0.5], [0.8]], n_samples=4).shape
        (3, 4)
        """
        check_count("n_samples", n_samples)
        X = self._test_rows(X)
        rng = random_generator(random_state)
        draws = self._model.draws(X, n_samples, rng, include_noise)
        return draws[:, 0, :] if self._squeeze else draws

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def _repr_html_inner(self) -> str:
        """scikit-learn's diagram, and below it what was learned."""
        diagram = super()._repr_html_inner()
        return diagram + self._summary_html() if self.__sklearn_is_fitted__() else diagram

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**options)
        if "text/html" in bundle and self.__sklearn_is_fitted__():
            bundle["text/html"] += self._summary_html()
        return bundle

    def _framed(self, values: Array, given: Any) -> Any:
        """In the shape of y, and of the kind that was asked for."""
        kind = kind_of(given) if self._output == "input" else self._output
        return framed(self._shaped(values), kind, given, self._target_names)


def load(
    path: str | Path,
    kernel: gpytorch.kernels.Kernel | None = None,
    mean: gpytorch.means.Mean | None = None,
) -> DSMGPRegressor:
    """A fitted model from a file; the same as :meth:`DSMGPRegressor.load`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> path = getfixture("tmp_path") / "line.dsmgp"
    >>> DSMGPRegressor(random_state=0).fit(X, X[:, 0]).save(path)
    >>> load(path).predict([[0.5]]).round(3)
    array([0.5])
    """
    return DSMGPRegressor.load(path, kernel, mean)
