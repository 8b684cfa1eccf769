"""The scikit-learn face of the model: rows come and go in its shapes."""

from __future__ import annotations

import html
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dsmgp.breaking import BreakingModel
from dsmgp.breaks import ChangePoints, has_breaks, with_changes
from dsmgp.drawn import Drawn
from dsmgp.effort import EFFORTS
from dsmgp.exact_leaf import exact_leaf
from dsmgp.finetune import finetune
from dsmgp.fit import fit
from dsmgp.fit_breaks import fit_breaks
from dsmgp.frames import OUTPUTS, column_names, framed, kind_of
from dsmgp.mixture import Mixture
from dsmgp.model import Model
from dsmgp.parameters import checked
from dsmgp.rows import new_rows, training_rows
from dsmgp.settings import Settings
from dsmgp.splits import ChangePoint, Splits
from dsmgp.storage import Saved, read_model, write_model
from dsmgp.summary import summarise
from dsmgp.summary_breaks import summarise_breaks
from dsmgp.timeline import dates_as_numbers, numbers_like
from dsmgp.tree import Node, Sum
from dsmgp.updates import Changing, Rows
from dsmgp.validation import (
    check_choice,
    check_count,
    check_noise,
    check_row_ids,
    input_number,
    random_generator,
)

__all__ = ["DSMGPRegressor", "load"]

Array = NDArray[np.float64]
logger = logging.getLogger("dsmgp")


class DSMGPRegressor(Drawn, RegressorMixin, BaseEstimator):  # type: ignore[misc]
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
        Noise variance of each leaf, in the order of ``dsmgp.tree.leaves(tree_)`` and in the units the experts see, without the
        leaf's scale. See :meth:`finetune` and :meth:`noise_at`.
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
        with _unchanged_on_error(self), _progress(self.verbose):
            settings = checked(self)
            names = column_names(y)
            X, y = self._training_rows(X, y)
            rng = random_generator(self.random_state)
            settings = _numbered(settings, X.shape[1], getattr(self, "feature_names_in_", None))
            Y = y.reshape(len(y), -1)
            # Copies: rows may come and go later, and these must still be what they are now.
            rows = Rows.first(X.copy(), Y.copy(), check_noise(noise, Y.shape))
            self._change_to(self._fit(rows, settings, rng))
            self._squeeze, self._target_names = y.ndim == 1, names
            self.adapted_: list[str] = []
        return self

    def _fit(self, rows: Rows, settings: Settings, rng: np.random.Generator) -> Changing:
        if has_breaks(settings.structure):
            if rows.noise is not None:
                raise ValueError(
                    "noise cannot be given where leaves may break (structure='changepoint'); leave it out, or allow "
                    "for outliers with ChangePoints(outliers=True)"
                )
            fitted = fit_breaks(rows.X, rows.Y, settings, rng)
        else:
            fitted = fit(rows.X, rows.Y, settings, rng, rows.noise)
        self._learned = fitted.learned
        self.n_evaluations_ = fitted.n_evaluations
        self.kernel_scores_ = fitted.kernel_scores or None
        scores = (fitted.loo_score, fitted.loo_score_new_inputs)
        return Changing.first(fitted.model, rows, settings.local_scale, scores)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        noise: ArrayLike | None = None,
        adapt: bool = True,
    ) -> DSMGPRegressor:
        """Learn from more rows without fitting again; before ``fit`` it is ``fit``.

        New rows go down the tree to their leaves, whose factors are extended; evidence, weights and scales
        follow, exactly as if all rows had been there when the leaves were conditioned. Rows get the numbers
        that follow (see ``row_ids_``).

        Parameters
        ----------
        X, y, noise
            As in :meth:`fit`; there may be a single row.
        adapt : bool, default=True
            Do what is due after many changes, and say so in ``adapted_``: after every fifth of the rows there were at
            the last fit, cut leaves that have outgrown their size and fit scales and gate again; when as many rows
            have come and gone as there were, fit everything again. When this happens depends on the rows, not on
            how they are put into batches. False leaves tree, units, hyperparameters and gate as they are.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DSMGPRegressor(random_state=0).fit(X[:50], np.sin(6 * X[:50, 0]))
        >>> model.partial_fit(X[50:], np.sin(6 * X[50:, 0])).predict([[1.0]]).round(1)
        array([-0.3])
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, noise)
        self._refuse_breaks("partial_fit", "call fit on all rows")
        with _unchanged_on_error(self), _progress(self.verbose):
            X, y = self._training_rows(X, y, reset=False)
            Y = y.reshape(len(y), -1)
            if Y.shape[1] != self._changing.rows.Y.shape[1]:
                raise ValueError(
                    f"expected y with {self._changing.rows.Y.shape[1]} outputs, as in fit, got {Y.shape[1]}"
                )
            known = check_noise(noise, Y.shape)
            self._adapt_through(
                len(X),
                adapt,
                lambda state, some: state.joined(
                    X[some], Y[some], None if known is None else known[some]
                ),
            )
        return self

    def forget(self, row_ids: ArrayLike, adapt: bool = True) -> DSMGPRegressor:
        """Drop training rows by their numbers, as if they had never been there.

        Rows are numbered in order of arrival: those of ``fit`` from 0 on, those of later ``partial_fit`` calls
        after them. ``row_ids_`` lists what is there, so ``model.forget(model.row_ids_[:-1000])`` keeps a window of the
        last 1,000 rows.
        """
        check_is_fitted(self)
        self._refuse_breaks("forget", "call fit on the rows that stay")
        with _unchanged_on_error(self), _progress(self.verbose):
            ids = check_row_ids(row_ids)
            self._changing.rows.places(ids)  # all of them are there, before any goes
            self._adapt_through(len(ids), adapt, lambda state, some: state.without(ids[some]))
        return self

    def _adapt_through(
        self, n_rows: int, adapt: bool, change: Callable[[Changing, slice], Changing]
    ) -> None:
        """Change the state row by row, as many at once as there are before something is due."""
        state, settings, first = self._changing, checked(self), 0
        done: list[str] = []
        if adapt and has_breaks(settings.structure):
            raise ValueError(
                "structure has been set to one whose leaves may break since the fit; call fit on all rows"
            )
        if adapt and state.review_is_overdue:
            state = self._due(state, settings, done)
        while first < n_rows:
            last = min(n_rows, first + state.until_review) if adapt else n_rows
            state = change(state, slice(first, last))
            first = last
            if not adapt or not state.review_is_due:
                continue
            state = self._due(state, settings, done)
        self._change_to(state)
        self.adapted_ = done

    def _due(self, state: Changing, settings: Settings, done: list[str]) -> Changing:
        """After what is due: a fit of everything, or a review."""
        rng = random_generator(self.random_state)
        if state.fit_is_due:
            lost = "" if state.model.thetas is None else ", without what was fine-tuned"
            state = self._fit(state.rows, settings, rng)
            done.append(f"fitted again on {len(state.rows)} rows{lost}")
        else:
            state, n_cut = state.reviewed(settings, rng)
            done.append(f"scales and gate fitted again, {n_cut} leaves cut")
        logger.info("%s", done[-1])
        return state

    def _change_to(self, state: Changing) -> None:
        self._changing = state
        self._model = state.model

    def _refuse_breaks(self, what: str, remedy: str) -> None:
        if isinstance(self._model, BreakingModel):
            raise ValueError(
                f"{what} is not available where leaves may break (structure='changepoint'); {remedy}"
            )

    def _settled(self) -> Changing:
        """With nothing left to be done about rows that have come or gone."""
        self._fitted  # noqa: B018  # hasattr answers no before fit
        self._change_to(self._changing.settled)
        return self._changing

    def finetune(
        self,
        max_iter: int = 40,
        similarity: Any = "overlap",
        parameters: str | Sequence[str] = "noise",
        rounds: int = 2,
        weights: str | None = None,
    ) -> DSMGPRegressor:
        """Give every leaf hyperparameters of its own, tied to those of the leaves that are like it (the paper's eq. 12).

        Leaf i maximises ``sum_j S_ij r_j log p(y_j | X_j, theta_i)``, from where it stands: after fit, or after the last
        fine-tuning. Scales of the leaves, gate and leave-one-out scores are then made again. ``kernel_`` and
        ``noise_`` stay those that fit has learned for all.

        Parameters
        ----------
        max_iter : int, default=40
            Most iterations of each leaf's search in a round.
        similarity : {"overlap", "jaccard"}, matrix or callable, default="overlap"
            S. ``"overlap"``: the share of leaf i's rows that leaf j holds too, as in the paper.
            ``"jaccard"``: rows that both hold of those that either holds, so that large leaves count less for the small
            ones inside them. Of both, entries below 0.05 are dropped. A matrix, sparse or not, has a row and a column
            for each leaf in the order of ``dsmgp.tree.leaves(tree_)``, entries in [0, 1] and ones on its
            diagonal; a callable makes one from the list of leaves.
        parameters : "noise", "all" or sequence of str, default="noise"
            Which to tune, such as ``["lengthscale", "outputscale", "noise", "mean"]``. Noise alone takes one
            eigendecomposition per leaf; others take the evidence of every pair of similar leaves again and again.
        rounds : int, default=2
            How often responsibilities r are taken anew. With prior weights they stay the same, and one is made.
        weights : {"prior", "posterior"}, optional
            r: prior path weights of the leaves (unless told), or their posterior responsibilities, which
            often leave all but one partition's leaves without a say.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 2, size=(400, 1))
        >>> y = np.sin(3 * X[:, 0]) + np.where(X[:, 0] < 1, 0.05, 0.5) * rng.normal(size=400)
        >>> model = DSMGPRegressor("rbf", leaf_size=50, weights="posterior", random_state=0)
        >>> quiet, noisy = model.fit(X, y).finetune().noise_at([[0.5], [1.5]])
        >>> bool(quiet < 0.005 < 0.15 < noisy)  # the truth: 0.0025 and 0.25
        True
        """
        check_is_fitted(self)
        self._refuse_breaks("finetune", "use another structure")
        with _unchanged_on_error(self), _progress(self.verbose):
            state = self._settled()
            tuned = finetune(
                state.model,
                state.rows.X,
                state.rows.Y,
                similarity=similarity,
                parameters=parameters,
                weights="prior" if weights is None else weights,
                rounds=check_count("rounds", rounds),
                max_iter=check_count("max_iter", max_iter),
                local_scale=state.local_scale,
                n_gate_rows=EFFORTS[checked(self).effort].n_gate_rows,
                rng=random_generator(self.random_state),
            )
            self._change_to(replace(state, model=tuned.model, scores=tuned.scores))
            self.n_evaluations_ += tuned.n_evaluations
        return self

    def noise_at(self, X: ArrayLike) -> Array:
        """Variance of the noise at the rows of X, in the units of y squared: (n,) or (n, n_outputs).

        That of the leaves which a row reaches, with their scales, weighed as in predictions: what the variance of y has beyond
        that of f. It varies where leaves have been fine-tuned, or have scales of their own.
        """
        X = self._test_rows(X)
        self._refuse_breaks("noise_at", "noise_ is the same everywhere")
        return self._shaped(self._model.noise(X))

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
        state = self._settled()
        found = state.model.split_posterior(number, state.rows.X[:, number])
        return replace(found, dates=self._dates.get(number))

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
        return summarise(self._settled().model, list(names), scores, self.kernel_scores_)

    def to_gpytorch(self, leaf: int = 0, output: int = 0) -> gpytorch.models.ExactGP:
        """One leaf as an exact GP of GPyTorch, with its rows and hyperparameters, ready to predict.

        Parameters
        ----------
        leaf : int
            Its number: its place among the leaves of ``tree_``.
        output : int
            Which of several outputs.

        Returns
        -------
        gpytorch.models.ExactGP
            In the units the experts see (standardised ones, unless ``standardize=False``); ``likelihood`` has the noise.

        Examples
        --------
        >>> import numpy as np, torch
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor("rbf", standardize=False, random_state=0).fit(X, X[:, 0] ** 2)
        >>> leaf = model.to_gpytorch(leaf=0)
        >>> leaf.train_inputs[0].shape[1]
        1
        """
        check_is_fitted(self)
        self._refuse_breaks("to_gpytorch", "kernel_ and noise_ are what was learned")
        return exact_leaf(self._settled().model, leaf, output)

    def save(
        self, path: str | Path, include_factors: bool = False, own_modules: bool = False
    ) -> None:
        """Write the fitted model to one file, whole or not at all.

        The file holds arrays (safetensors) and a header in JSON: training rows, tree, hyperparameters, gate, scores. Nothing in
        it is executed when it is loaded. It takes about as much room as the training data.

        Parameters
        ----------
        path : str or Path
            Its usual ending is ``.dsmgp``. A file of that name is replaced.
        include_factors : bool
            Whether to write the leaves' Cholesky factors too: loading then takes no computing, and the file a
            hundred times the room or more.
        own_modules : bool
            Whether a kernel or mean of your own class, which is code, may be left out. Give it again when
            loading.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor(random_state=0).fit(X, X[:, 0] ** 2)
        >>> path = getfixture("tmp_path") / "square.dsmgp"
        >>> model.save(path)
        >>> bool((DSMGPRegressor.load(path).predict(X) == model.predict(X)).all())
        True
        """
        check_is_fitted(self)
        self._refuse_breaks("save", "use pickle or joblib, or fit again where it is needed")
        names = getattr(self, "feature_names_in_", None)
        saved = Saved(
            parameters=self.get_params(deep=False),
            state=self._settled(),
            learned=self._learned,
            kernel_scores=self.kernel_scores_,
            n_evaluations=self.n_evaluations_,
            squeeze=self._squeeze,
            target_names=self._target_names,
            feature_names=None if names is None else [str(name) for name in names],
            table=getattr(self, "_table", None),
            dates=self._dates,
        )
        write_model(path, saved, include_factors, own_modules)

    @classmethod
    def load(
        cls,
        path: str | Path,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: gpytorch.means.Mean | None = None,
    ) -> DSMGPRegressor:
        """A fitted model from a file that :meth:`save` wrote.

        Leaves are conditioned again, unless the file holds their factors. Everything in the file is checked; one that is
        damaged, or no model, raises :class:`~dsmgp.archive.ModelFileError`.

        Parameters
        ----------
        path : str or Path
        kernel, mean : GPyTorch modules, optional
            Those of your own that the file was saved without.
        """
        model, saved = read_model(cls, path, kernel, mean)
        model._change_to(saved.state)
        model._learned, model.n_evaluations_ = saved.learned, saved.n_evaluations
        model.kernel_scores_ = saved.kernel_scores
        model._squeeze, model._target_names = saved.squeeze, saved.target_names
        model.adapted_, model._dates = [], saved.dates
        model.n_features_in_ = saved.state.rows.X.shape[1]
        if saved.feature_names is not None:
            model.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        if saved.table is not None:
            model._table = saved.table
        return model

    @property
    def tree_(self) -> Node:
        return self._settled().model.tree

    @property
    def row_ids_(self) -> NDArray[np.int64]:
        self._fitted  # noqa: B018
        return self._changing.rows.ids.copy()

    @property
    def loo_score_(self) -> float:
        return self._scores[0]

    @property
    def loo_score_new_inputs_(self) -> float:
        return self._scores[1]

    @property
    def _scores(self) -> tuple[float, float]:
        scores = self._settled().scores
        assert scores is not None
        return scores

    @property
    def posterior_weights_(self) -> dict[Sum, Array]:
        log_weights = self._settled().model.posterior.log_weights
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
    def leaf_noise_(self) -> Array:
        state = self._settled()
        self._refuse_breaks("leaf_noise_", "noise_ is the same everywhere")
        return self._shaped(state.model.experts.noise.copy())

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

    @property
    def _rows(self) -> tuple[Array, Array]:
        """Training rows of now and their outputs, (n_rows, n_outputs), in the user's units."""
        self._fitted  # noqa: B018
        return self._changing.rows.X, self._changing.rows.Y

    def _shaped(self, values: Array) -> Array:
        return values[..., 0] if self._squeeze else values

    def _framed(self, values: Array, given: Any) -> Any:
        """In the shape of y, and of the kind that was asked for."""
        kind = getattr(self, "_sklearn_output_config", {}).get("predict", "default")
        if kind == "input":
            kind = kind_of(given)
        return framed(self._shaped(values), kind, given, self._target_names)

    def _repr_html_inner(self) -> str:
        """scikit-learn's diagram, and below it what was learned."""
        diagram = super()._repr_html_inner()
        return diagram + self._summary_html() if self.__sklearn_is_fitted__() else diagram

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**options)
        if "text/html" in bundle and self.__sklearn_is_fitted__():
            bundle["text/html"] += self._summary_html()
        return bundle

    def _summary_html(self) -> str:
        text = html.escape(self.summary())
        return f"<details open><summary>What was learned</summary><pre>{text}</pre></details>"

    def _training_rows(self, X: ArrayLike, y: ArrayLike, reset: bool = True) -> tuple[Array, Array]:
        """Rows to fit, or, without ``reset``, to add to those there are."""
        if reset:
            X, self._dates = dates_as_numbers(X)
        else:
            X = numbers_like(X, self._dates, getattr(self, "feature_names_in_", None))
        return training_rows(self, X, y, reset)

    def _test_rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return new_rows(
            self, numbers_like(X, self._dates, getattr(self, "feature_names_in_", None))
        )


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


def _numbered(settings: Settings, n_inputs: int, names: Sequence[str] | None) -> Settings:
    """The input that orders rows by its number."""

    def numbered(changes: ChangePoints) -> ChangePoints:
        return replace(changes, dimension=input_number(changes.dimension, n_inputs, names))

    asked = settings.structure
    if isinstance(asked, ChangePoints):
        return replace(settings, structure=numbered(asked))
    if isinstance(asked, str) or not has_breaks(asked):
        return settings
    return replace(settings, structure=with_changes(asked, numbered))


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
    """Show a bar for the time of a fit where one can be drawn, else send what the library logs to standard error."""
    if not verbose:
        yield
        return
    if importlib.util.find_spec("rich") is not None:
        from dsmgp import bars

        if bars.can_draw():
            with bars.bar():
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
