"""The estimator: scikit-learn's interface to fitting, online updates, prediction and model files.

Each verb computes a new :class:`~dsmgp.fitting.state.FittedState` and assigns it at its end: an error or an
interrupt leaves the estimator as it was.
"""

from __future__ import annotations

import html
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError

from dsmgp import plots
from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.machine import require_torch
from dsmgp._util.validation import (
    check_choice,
    check_count,
    check_levels,
    check_row_ids,
    check_spread,
    input_number,
    random_generator,
)
from dsmgp._util.warnings import warn_user
from dsmgp.data.columns.learning import EncodedTable
from dsmgp.data.frames import OUTPUTS
from dsmgp.data.input_schema import InputSchema
from dsmgp.data.unknown_inputs import (
    covariance_at,
    draws_at,
    mean_at,
    mixture_at,
    moments_at,
    noise_at,
)
from dsmgp.distributed.executor import Executor
from dsmgp.explain.explanation import Explanation
from dsmgp.explain.permutation import PermutationImportance, permutation_importance
from dsmgp.explain.shapley import random_rows, shapley_values
from dsmgp.fitting.config import FitConfig, check_parameters
from dsmgp.fitting.finetuning.finetune import finetune
from dsmgp.fitting.fitted_attribute import FittedAttribute
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.fitting.training_mode import progress_shown, training_mode
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.mixture.fitted_model import FIT_DATASET, check_supported
from dsmgp.mixture.kernel_posterior import RegionKernels
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution
from dsmgp.mixture.splits import ChangePoint, Splits
from dsmgp.mixture.variance_error import exact_variances
from dsmgp.model_kinds import add_to_model, fit_model, remove_from_model
from dsmgp.persistence.estimator import read_model, write_model
from dsmgp.summary import summarise
from dsmgp.tree.changepoint_leaf import ChangePoints
from dsmgp.tree.nodes import Node, Sum

if TYPE_CHECKING:
    import gpytorch

__all__ = ["DSMGPRegressor", "fit_table", "load"]

logger = logging.getLogger("dsmgp")


class DSMGPRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gaussian-process regression for tables of any size: a deep structured mixture of GPs.

    The input space is partitioned in several random ways, and every part (leaf) has a GP of its own (Trapp et
    al., AISTATS 2020). The partitions are averaged: by default with weights that depend on the predictive
    variance of each leaf at a row, or exactly, by their posterior probabilities.

    Parameters
    ----------
    kernel : str, list of str, Kernel or gpytorch.kernels.Kernel, default="auto"
        ``"auto"`` tries ``"rbf"``, ``"matern12"``, ``"matern32"`` and ``"matern52"`` and keeps the one with the
        best leave-one-out score. Where one input is a date, or numbers in equal steps, it also tries trends and
        seasons, and keeps them if they forecast the end of the training rows clearly better.

        Give a name if you know the kernel: one of these, ``"rq"``, ``"periodic"`` or ``"linear"``, each with a
        length scale per input; a sum of products such as ``"linear+rbf*periodic"``, also of some inputs, as in
        ``"rbf[0]+matern32[1,2]"``. Or give the ``kernel_`` of another model, from whose values learning starts,
        or a GPyTorch kernel with its constraints and priors (``dsmgp[torch]``). A list of names is a sum node
        over kernels above every leaf: inference over kernels, region by region (``kernel_posterior_``).
    mean : str or gpytorch.means.Mean, default="auto"
        ``"zero"``, ``"constant"``, ``"linear"``, or a GPyTorch mean (``dsmgp[torch]``). ``"auto"`` tries these
        three by leave-one-out with ``kernel="auto"``, and prefers the simpler ones; else it is zero. See also
        ``hypotheses``.
    noise_variance : float, optional
        Where the search for the noise variance starts, or its value with ``optimizer=None``. In the units of
        the leaf GPs: those of standardised outputs, or of y with ``standardize=False``.
    structure : "balanced", "paper", "learned", "changepoint", ChangePoints or a tree, default="balanced"
        How the inputs are partitioned. ``"balanced"``: compact leaves of similar size. ``"paper"``: Algorithm 1
        of the paper. ``"learned"``: trees found by posterior inference, for functions that break along unknown
        boundaries (:meth:`split_posterior` shows where). ``"changepoint"``: rows in order along one input with
        any number of change points, all segmentations averaged exactly;
        :class:`~dsmgp.tree.changepoint_leaf.ChangePoints` sets the input, how often the function changes, and
        whether there are outliers. Or a tree of :class:`~dsmgp.tree.nodes.Sum`,
        :class:`~dsmgp.tree.nodes.Product` and :class:`~dsmgp.tree.nodes.Leaf`, in the units of X.
    leaf_size : int, sequence of int or "auto", default="auto"
        The largest number of rows in a leaf (M). A list gives one size per partition (balanced only).
        ``"auto"``: several sizes by ``effort`` (balanced), 100 (paper), or 2,000, 4,000 or 10,000 by ``effort``
        (learned).
    sum_children : int or "auto", default="auto"
        The number of partitions that a sum node averages (K_S). ``"auto"``: one for each size, or 8 if there is
        only one size (balanced); 4 (paper); at most 64, two for each tree (learned).
    product_children : int, optional
        The number of parts of a product (K_P): 2 (balanced) or ``ceil((N / M) ** (1 / R))`` (paper).
    depth : int, optional
        The number of layers of sum nodes (R): 1 (balanced) or 2 (paper).
    weights : "auto", "gated", "posterior", or "uniform", default="auto"
        Weights of the leaves that a row reaches. ``"gated"``: by their predictive variances there, fitted by
        leave-one-out (:mod:`dsmgp.mixture.weights.gating`). ``"posterior"``: exact Bayesian model averaging, as in the
        paper. ``"uniform"``: equal weights. ``"auto"``: ``"posterior"`` with ``structure="learned"`` or a list
        of kernels, else ``"gated"``.
    local_scale : bool, optional
        Whether every leaf scales its variance by its own leave-one-out residuals. By default only with gated
        weights.
    effort : "low", "medium", or "high", default="medium"
        Computational budget of everything that is ``"auto"``: sizes and number of the leaves, and rows used
        for learning.
    optimizer : "lbfgs", "adam", "rmsprop", or None, default="lbfgs"
        How hyperparameters are learned. None keeps kernel and noise as given.
    objective : "surrogate" or "full", default="surrogate"
        ``"surrogate"``: learn on one partition, as the paper does. ``"full"``: go on from there on the evidence
        of the whole mixture.
    max_iter : int, optional
        Maximum number of iterations of the optimiser: 60 (lbfgs), 300 (adam), 1000 (rmsprop).
    n_restarts : int, default=0
        Further searches from random starts; the best is kept.
    standardize : bool, default=True
        Whether inputs and outputs are standardised internally.
    device : str, default="auto"
        ``"cpu"``, or a GPU by torch's name for it (``dsmgp[torch]``); ``"auto"`` is the GPU if there is one.
    dtype : "float64" or "float32", default="float64"
        Precision of the leaf GPs; ``"float32"`` needs ``dsmgp[torch]``.
    memory_limit : int or str, optional
        Memory for matrices, in bytes or as text such as ``"4GB"``.
    executor : "local", "ray", or RayExecutor, default="local"
        Where leaves are computed: in this process, or by actors of a Ray cluster (``dsmgp[ray]``), which is
        joined or started; :class:`dsmgp.ray.RayExecutor` sets cluster, workers and resources. Results are the
        same.
    checkpoint : path, optional
        A file in which a fit records its progress. The same fit resumes from there after an interruption, with
        the same result; at its end the file is removed.
    random_state : int, RandomState, Generator, or None
        Seeds everything random.
    verbose : bool, default=False
        Show progress on standard error: a bar in terminals and notebooks (with ``dsmgp[cli]``), else lines of
        the log ``"dsmgp"``.
    input_warp : "auto", "rank", "both", or None, default="auto"
        Increasing transformations of the inputs, column by column. ``"rank"``: normal
        scores of the ranks. ``"both"``: every column as it is and warped, side by side. ``"auto"`` tries both
        and keeps one if its leave-one-out gain is clear; it is None with fewer than 500 rows, weights that are
        not gated, a kernel or mean of your own, or a structure other than ``"balanced"``.
    output_warp : "auto", "rank", "log", "positive", or None, default="auto"
        For outputs that are skewed, heavy-tailed or bounded: GPs see t with ``y = h(t)``, h increasing.
        ``"rank"``: t is about the normal score of y. ``"log"``: its logarithm; y must be above 0.
        ``"positive"``: as ``"rank"``, with predictions above 0. ``"auto"`` tries normal scores and keeps them
        if their leave-one-out gain is clear, under the conditions of ``input_warp``. Predictions are in the
        units of y. Cannot be combined with known noise.
    metric : "auto", "diagonal", "full", or "deep", default="auto"
        ``"diagonal"``: a length scale per input. ``"full"``: a linear map of the inputs, learned by the
        evidence; trees then cut along its directions. ``"deep"``: a deep kernel; the outputs of a small
        network, learned by the evidence, are further coordinates, in which trees cut as well. ``"auto"`` tries
        a linear map, with ``effort="high"`` also a network, and keeps each if its leave-one-out gain is clear,
        under the conditions of ``input_warp``.
    boosted_trees : "auto", "always", or None, default="auto"
        Whether the predictions of boosted regression trees (scikit-learn's ``HistGradientBoostingRegressor``)
        are a further coordinate, for functions with many steps. A training row is predicted by trees that
        were learned without it. ``"auto"`` tries it where trees predict about as well as small leaves do,
        unless ``effort="low"``, and keeps it if its leave-one-out gain is clear, under the conditions of
        ``input_warp``.
    missing : "model", "drop", or "error", default="model"
        What becomes of missing inputs (NaN, None, NaT, NA). ``"model"``: a missing category is a level of its
        own, a missing number is replaced by the median and marked by a further input. ``"drop"``: such training
        rows are left out. ``"error"``: they are refused. Rows without a target are always left out.
    categorical_features : "from_dtype", array-like of bool, int or str, or None, default="from_dtype"
        Columns of numbers that are codes of categories, by a mask, by number or by name. Columns of text, and
        of categories in frames, are categories in any case.
    hypotheses : "auto", "average", or None, default="auto"
        ``"auto"``: a table of 40 to 499 rows, up to 100 inputs and one output is fitted under up to eight
        hypotheses (inputs as they are, warped, or both; zero or linear mean; output warped), which are weighed
        by stacking. That takes seconds instead of tenths, in this process, on the CPU and without a
        ``checkpoint``. It is not done if ``kernel``, ``mean``, ``input_warp``, ``metric``, ``structure``,
        ``weights`` or ``objective`` is not the default or ``output_warp`` is a warp of your choice (with None
        no hypothesis warps the output), nor with ``effort="low"``, ``optimizer=None``, ``standardize=False`` or
        files on disk. ``"average"``: the paper's model, averaged over what the user leaves open of kernels (four)
        and means (zero, linear), and over their hyperparameters: 64 draws around the optima, with weights
        proportional to prior times evidence. It makes ``weights="auto"`` ``"posterior"``, is for one output and
        named kernels, and for tables of any number of rows in memory. None: never.
    variances : "auto" or "exact", default="auto"
        How predictions get the variances of large leaves. ``"auto"``: by low-rank factors where enough rows are
        predicted to pay for them; the standard deviation of y moves by at most a thousandth. ``"exact"``:
        exactly, as fits, draws and covariances always do. May be set after :meth:`fit`, too.
    priors : "lognormal" or None, default="lognormal"
        Priors on the hyperparameters of named kernels: wide log-normal ones on length scales, output scales and
        periods, or None for maximum likelihood, as in the paper. GPyTorch kernels keep their own.
    outputs : "auto" or "independent", default="auto"
        How several outputs are modelled, always with one tree and hyperparameters for each. ``"auto"``: where
        they are correlated, their principal components and their residuals on one another are tried as well,
        and leave-one-out decides. ``"independent"``: each output is a GP of its own, as in the paper.

    Attributes
    ----------
    tree_ : Sum, Product, or Leaf
        The structure, in the units of X; with a learned metric in those of ``coordinates_(X)``, along whose
        directions trees cut. Leaves list the positions of their training rows.
    coordinates_ : Coordinates or None
        The map from inputs to the coordinates that trees cut and kernels compare, if inputs were warped or a
        metric was learned.
    posterior_weights_ : dict of Sum to ndarray
        Posterior probability of each sum node's children.
    kernel_posterior_ : list of RegionKernels
        If ``kernel`` is a list: the posterior over these kernels in every region of every partition.
    kernel_, noise_ : Kernel and float
        As learned, in the experts' units. ``kernel_`` is a :class:`~dsmgp.gp.kernels.Kernel` with length scales
        and output scale, or GPyTorch's where one was given. Several outputs: a list of each; if outputs were
        rotated they belong to the components, of which ``output_loading_`` composes the outputs.
    leaf_noise_ : ndarray of shape (n_leaves,) or (n_leaves, n_outputs)
        Noise variance of each leaf, in the order of ``dsmgp.tree.nodes.leaves(tree_)`` and in the experts'
        units, without the leaf's scale. See :meth:`finetune` and :meth:`noise_at`.
    output_loading_ : ndarray of shape (n_outputs, n_outputs)
        ``y = centre + output_loading_ @ z``, with z the outputs in the experts' units. Where outputs are warped
        it is the latent outputs that are composed like that.
    log_marginal_likelihood_ : float
        Log evidence of y, in the units of y, under the mixture; with ``hypotheses="average"`` the log of its
        average over the prior, otherwise of the heaviest hypothesis.
    loo_score_, loo_score_new_inputs_ : float
        Mean negative log predictive density of training rows, each given all others, and each given all rows
        with other inputs. They estimate the score on new rows like these, and at new inputs. Where several
        hypotheses are mixed (see ``hypotheses``), hyperparameters, gate and weights of hypotheses were learned
        without the fold of the row, one of five, and the scores are those of the last fit; with
        ``hypotheses="average"`` the average is over the posterior given the other rows.
    kernel_scores_ : dict of str to float, or None
        Leave-one-out scores of the kernels that ``kernel="auto"`` tried, in the experts' units; lower is
        better. Where trends and seasons were chosen, losses of forecasts relative to a stationary kernel.
    n_induced_trees_ : int
        Number of partitions that the mixture averages.
    n_iter_ : int
        Iterations of the optimiser, for the output that took most.
    n_evaluations_ : int
        Evaluations of the evidence and its gradient, each on some of the leaves, trials of kernels and scalings
        included.
    fit_times_ : dict of str to float
        Seconds that each stage of the last fit took, by its name; empty for a model from a file. ``verbose``
        shows them.
    row_ids_ : ndarray of int
        Numbers of the training rows, in order of arrival; ``Leaf.rows`` are positions in this array.
    adapted_ : list of str
        Maintenance steps performed by the last :meth:`partial_fit` or :meth:`forget`.
    remarks_ : list of str
        How columns that are not numbers and missing values were encoded, and which rows and columns were
        left out; what looks like an identifier, a copy of the target or the like; and whether predictive
        intervals reach below 0 (above 1) where targets never do. The last is computed when it is first
        asked for, at 500 training rows.
    feature_importances_ : ndarray of shape (n_columns,)
        Importance of each column of the training table, of sum one: its share in the variation of the
        predictive mean, by half the mean square change when only that column is exchanged with another training
        row's. Computed when it is first asked for, on a sample of 500 training rows.
    n_features_in_, feature_names_in_
        As in scikit-learn. A column may become several inputs: ``state_.schema.groups`` lists them.
    state_ : FittedState
        All of this as one immutable object, for code that builds on the estimator: the fitted model, the
        training rows, the input schema and the record of the search.

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
    >>> sorted(model.kernel_scores_), model.n_evaluations_ > 0
    (['matern12', 'matern32', 'matern52', 'rbf'], True)
    >>> model.n_features_in_, model.state_.schema.input_names, model.adapted_
    (1, ['x0'], [])

    Frames are taken as they are. Codes of categories that are numbers are declared as such:

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"size": X[:, 0], "colour": "red", "shop": rng.integers(1, 4, 300)})
    >>> frame.loc[100:, "colour"], frame.loc[::50, "size"] = "blue", None
    >>> model = DSMGPRegressor(
    ...     "rbf", missing="model", categorical_features=["shop"], random_state=0
    ... )
    >>> for remark in model.fit(frame, y).remarks_:
    ...     print(remark)
    column 'colour': 2 levels, one-hot encoded
    column 'shop': 3 levels, one-hot encoded
    column 'size': 6 missing values, filled with the median of the training rows, 0.370898, and marked by an indicator
    """

    def __init__(
        self,
        kernel: str | Sequence[str] | Kernel | gpytorch.kernels.Kernel = "auto",
        mean: str | gpytorch.means.Mean = "auto",
        noise_variance: float | None = None,
        structure: str | ChangePoints | Node = "balanced",
        leaf_size: int | Sequence[int] | str = "auto",
        sum_children: int | str = "auto",
        product_children: int | None = None,
        depth: int | None = None,
        weights: str = "auto",
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
        input_warp: str | None = "auto",
        output_warp: str | None = "auto",
        metric: str = "auto",
        missing: str = "model",
        categorical_features: Any = "from_dtype",
        hypotheses: str | None = "auto",
        variances: str = "auto",
        priors: str | None = "lognormal",
        outputs: str = "auto",
        boosted_trees: str | None = "auto",
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
        self.input_warp = input_warp
        self.output_warp = output_warp
        self.metric = metric
        self.missing = missing
        self.categorical_features = categorical_features
        self.hypotheses = hypotheses
        self.variances = variances
        self.priors = priors
        self.outputs = outputs
        self.boosted_trees = boosted_trees

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        noise: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Grow the tree, learn the hyperparameters and condition every leaf.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            Numbers, flags, text, categories, dates and missing values, as they are. ``remarks_`` lists how
            columns were encoded.
        y : array-like of shape (n_rows,) or (n_rows, n_outputs)
            Rows whose target is missing are left out.
        noise : float or array-like of shape (n_rows,) or (n_rows, n_outputs), optional
            Known noise variances of the observations, in the units of y squared. They add to the noise that is
            learned; predictions are of observations without them.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows. A row of weight w counts as w copies of itself (w need not be an integer):
            its noise variance is divided by w, and averages over rows are weighted. Rows of weight zero are
            left out, and keep their numbers. Trees are grown by the number of rows, whatever their weights.

        Returns
        -------
        self
        """
        with self._training() as config:
            schema, table = InputSchema.learn(
                X, y, self.missing, self.categorical_features, sample_weight
            )
            rows = TrainingRows.of_table(table, noise, sample_weight, least=2)
            self._state = fit_model(rows, schema, config)
        _warn_of(schema.remarks)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        noise: ArrayLike | None = None,
        adapt: bool = True,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Add training rows without fitting again (an online update); before ``fit`` it is ``fit``.

        New rows are routed to their leaves, whose Cholesky factors are extended; evidence, weights and
        scales follow, exactly as if the leaves had been conditioned on all rows. New rows are numbered
        consecutively (see ``row_ids_``).

        Parameters
        ----------
        X, y, noise
            As in :meth:`fit`; there may be a single row.
        adapt : bool, default=True
            Perform maintenance when it is due, and list it in ``adapted_``: when the rows added and removed
            reach a fifth of those of the last fit, split leaves that have outgrown their size, and refit
            scales and gate; when they reach all of them, refit everything. When this happens depends on the
            rows, not on the batches they come in. False leaves tree, scaling, hyperparameters and gate as
            they are.
        sample_weight : array-like of shape (n_rows,), optional
            As in :meth:`fit`.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DSMGPRegressor(random_state=0).fit(X[:50], np.sin(6 * X[:50, 0]))
        >>> model.partial_fit(X[50:], np.sin(6 * X[50:, 0])).predict([[1.0]]).round(1)
        array([-0.3])
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, noise, sample_weight)
        before = self._state_for("partial_fit")
        with self._training() as config:
            table = before.schema.training_rows(X, y, self.missing)
            rows = TrainingRows.of_table(table, noise, sample_weight, before.rows.next_id)
            self._state = add_to_model(before, rows, config, adapt)
        return self

    def forget(self, row_ids: ArrayLike, adapt: bool = True) -> Self:
        """Remove training rows by their numbers, as if they had never been there.

        Rows are numbered in order of arrival: those of ``fit`` from 0 on, those of later ``partial_fit`` calls
        after them. ``row_ids_`` lists the present rows, so ``model.forget(model.row_ids_[:-1000])`` keeps a
        window of the last 1,000 rows.

        Parameters
        ----------
        row_ids : array-like of int
        adapt : bool, default=True
            As in :meth:`partial_fit`.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> model.forget([0, 1, 59]).row_ids_[:3]
        array([2, 3, 4])
        """
        before = self._state_for("forget")
        with self._training() as config:
            self._state = remove_from_model(before, check_row_ids(row_ids), config, adapt)
        return self

    def finetune(
        self,
        max_iter: int = 40,
        similarity: Any = "overlap",
        parameters: str | Sequence[str] = "noise",
        rounds: int = 2,
        weights: str | None = None,
    ) -> Self:
        """Give every leaf hyperparameters of its own, tied to those of similar leaves (the paper's eq. 12).

        Leaf i maximises ``sum_j S_ij r_j log p(y_j | X_j, theta_i)``, from where it stands: after fit, or after
        the last fine-tuning. Scales, gate and leave-one-out scores are then computed again. ``kernel_`` and
        ``noise_`` stay those that fit has learned for all leaves.

        Parameters
        ----------
        max_iter : int, default=40
            Most iterations of each leaf's search in a round.
        similarity : "overlap", "jaccard", matrix, or callable, default="overlap"
            S. ``"overlap"``: the share of leaf i's rows that leaf j holds too, as in the paper. ``"jaccard"``:
            rows that both hold of those that either holds, so that large leaves count less for the small ones
            inside them. Of both, entries below 0.05 are dropped. A matrix, sparse or not, has a row and a
            column for each leaf in the order of ``dsmgp.tree.nodes.leaves(tree_)``, entries in [0, 1] and ones
            on its diagonal; a callable makes one from the list of leaves.
        parameters : "noise", "all" or sequence of str, default="noise"
            Which to tune, such as ``["lengthscale", "outputscale", "noise", "mean"]``. Noise alone takes one
            eigendecomposition per leaf; others take the evidence of every pair of similar leaves again and
            again.
        rounds : int, default=2
            How often the responsibilities r are computed. With prior weights they stay the same, and one round
            is made.
        weights : "prior" or "posterior", optional
            r: prior path weights of the leaves (the default), or their posterior responsibilities, which
            often give all weight to the leaves of one partition.

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
        before = self._state_for("finetune")
        with self._training() as config:
            self._state = finetune(
                before.conditioned,
                config,
                similarity=similarity,
                parameters=parameters,
                weights="prior" if weights is None else weights,
                rounds=check_count("rounds", rounds),
                max_iter=check_count("max_iter", max_iter),
            )
        return self

    def fit_dataset(
        self,
        data: str | Path | Sequence[str | Path],
        target: str | Sequence[str],
        *,
        features: Sequence[str] = (),
        drop: Sequence[str] = (),
        categories: str = "auto",
        missing: str | None = None,
        store: str | Path | None = None,
    ) -> Self:
        """Fit to Parquet files, which may hold far more rows than memory does.

        Scaling, hyperparameters and tree come from a sample of rows; then one pass writes every row to files of
        its leaves, and leaves are conditioned shard by shard within ``memory_limit``. If the sample holds all
        rows, the model is that of :meth:`fit`.

        Parameters
        ----------
        data : path, glob, URL or sequence of them
            Parquet files, or folders of them. All have the same columns.
        target : str or sequence of str
            The columns to predict.
        features, drop : sequence of str
            Columns to predict from (all others if left out), and columns to leave out.
        categories : "auto", "onehot", or "refuse"
            What to do with columns of text: one-hot encoding of few levels and the effects of many, one-hot
            encoding of all, or an error.
        missing : "model", "drop", or "error", optional
            What to do with missing values of inputs; by default what the estimator's parameter says.
        store : path, optional
            A folder for the model and its rows, which :func:`dsmgp.load` reads; on a disk, not a URL. A temporary
            one if left out.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np, pyarrow as pa
        >>> from pyarrow import parquet
        >>> x = np.linspace(0, 1, 400)
        >>> folder = getfixture("tmp_path")
        >>> parquet.write_table(pa.table({"x": x, "y": np.sin(6 * x)}), folder / "rows.parquet")
        >>> model = DSMGPRegressor(leaf_size=100, random_state=0).fit_dataset(folder, target="y")
        >>> model.predict_dataset(folder / "rows.parquet", folder / "predicted.parquet")
        400
        >>> parquet.read_table(folder / "predicted.parquet").column_names
        ['y_mean', 'y_std']
        """
        from dsmgp.fitting.datasets.fit import fit_files

        declared = self.categorical_features
        FIT_DATASET.refuse_given(
            {"categorical_features": not (declared is None or isinstance(declared, str))}
        )
        folder = None if store is None else Path(store)
        with self._training() as config:
            columns = {
                "features": features,
                "drop": drop,
                "categories": categories,
                "missing": self.missing if missing is None else missing,
            }
            targets = [target] if isinstance(target, str) else list(target)
            state = fit_files(data, targets, columns, config, folder)
            if folder is not None:
                self._write(state, folder)
            self._state = state
        return self

    def partial_fit_dataset(self, data: str | Path | Sequence[str | Path]) -> Self:
        """Add the rows of further Parquet files to a model that was fitted by :meth:`fit_dataset`.

        Rows are written to files beside the others. Tree, scaling and hyperparameters stay; leaves are
        conditioned again on all rows, and scales and gate are fitted again. A model that was saved has to be
        saved again.

        Parameters
        ----------
        data : path, glob, URL or sequence of them
            Parquet files, or folders of them, with the columns of the training files.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np, pyarrow as pa
        >>> from pyarrow import parquet
        >>> x, folder = np.linspace(0, 1, 400), getfixture("tmp_path")
        >>> for k, part in enumerate((x[:300], x[300:])):
        ...     table = pa.table({"x": part, "y": np.sin(6 * part)})
        ...     parquet.write_table(table, folder / f"{k}.parquet")
        >>> model = DSMGPRegressor(leaf_size=100, random_state=0)
        >>> model.fit_dataset(folder / "0.parquet", "y").partial_fit_dataset(folder / "1.parquet")
        DSMGPRegressor(leaf_size=100, random_state=0)
        >>> model.adapted_
        ['conditioned again on 400 rows; scales and gate fitted again']
        """
        from dsmgp.fitting.datasets.updates import add_files

        before = self._state_for("partial_fit_dataset")
        with self._training() as config:
            self._state = add_files(before, data, self.missing, config)
        return self

    def forget_dataset(self, where: Any) -> Self:
        """Remove the rows that fulfil a condition from a model that was fitted by :meth:`fit_dataset`.

        All files of rows are written again without them, and the sample of the rows that the model holds loses
        them. Saved to the same folder, the model is without them on disk: the files before are removed, unless
        another model of this process uses them, which a warning says. Models that other processes have loaded
        must be loaded again. What was learned from the rows (tree, scaling, hyperparameters) stays, as in
        :meth:`partial_fit_dataset`.

        Parameters
        ----------
        where : pyarrow.compute.Expression
            On the columns of the files that became inputs, and on the targets, such as ``pc.field("year") < 2015``,
            ``pc.field("colour") == "red"`` or ``pc.field("day") >= datetime.date(2020, 1, 1)``. All numbers, whole
            ones and flags too, are floats, times are in UTC, and the levels of categories are text. Missing values
            are null where the model keeps that they were missing, and else what they were filled in with. Categories
            of which the model keeps only effects, those of many levels, are refused.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np, pyarrow as pa, pyarrow.compute as pc
        >>> from pyarrow import parquet
        >>> x, folder = np.linspace(0, 1, 400), getfixture("tmp_path")
        >>> parquet.write_table(pa.table({"x": x, "y": np.sin(6 * x)}), folder / "rows.parquet")
        >>> model = DSMGPRegressor(leaf_size=100, random_state=0).fit_dataset(folder, target="y")
        >>> model.forget_dataset(pc.field("x") > 0.5).adapted_
        ['conditioned again on 200 rows; scales and gate fitted again']
        """
        from dsmgp.fitting.datasets.updates import forget_rows

        before = self._state_for("forget_dataset")
        with self._training() as config:
            self._state = forget_rows(before, where, config)
        return self

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool = True,
        quantiles: Sequence[float] | None = None,
    ) -> Array | tuple[Array, Array]:
        """Predict the mean, and the standard deviation or the joint covariance; or quantiles.

        Parameters
        ----------
        X : array-like or frame of shape (n, n_features)
        return_std, return_cov : bool
            At most one of them.
        include_noise : bool
            Whether the spread is that of a new observation y, or of the function f.
        quantiles : sequence of float, optional
            Levels in (0, 1), such as ``[0.05, 0.5, 0.95]``. Quantiles are then returned instead of the mean. A
            number is a list of one level.

        Returns
        -------
        mean : ndarray of shape (n,) or (n, n_outputs); a series or frame after :meth:`set_output`
        std : of the same kind and shape, with ``return_std``
        cov : ndarray of shape (n, n) or (n, n, n_outputs), with ``return_cov``
        quantiles : ndarray of shape (n, n_quantiles) or (n, n_outputs, n_quantiles), with ``quantiles``
            After :meth:`set_output` a frame, with columns such as ``price_q5`` and ``price_q95`` for each
            output.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0] ** 2)
        >>> mean, std = model.predict([[0.5], [2.0]], return_std=True)
        >>> bool(std[0] < std[1])  # uncertainty grows away from the training rows
        True
        >>> model.predict([[0.5], [2.0]], quantiles=[0.05, 0.5, 0.95]).shape
        (2, 3)
        """
        if return_std and return_cov:
            raise InputError("expected at most one of return_std and return_cov, got both")
        if quantiles is not None:
            if return_std or return_cov:
                raise InputError(
                    "quantiles cannot be combined with return_std or return_cov; call predict twice, "
                    "or take both from predict_dist"
                )
            levels = check_levels(quantiles)
            values = self.predict_dist(X, include_noise).quantile(levels)
            return self.state_.schema.framed_quantiles(values, levels, X, self._output)
        state, output = self.state_, self._output
        model, schema = state.predictive, state.schema
        rows = schema.to_rows(X)
        state.warn_of_outside(rows.X)
        if return_cov:
            mean, covariance = covariance_at(model, rows, include_noise)
            return schema.framed(mean, X, output), schema.shaped(np.moveaxis(covariance, 0, -1))
        with exact_variances(self.variances == "exact"):
            if return_std:
                mean, std = moments_at(model, rows, include_noise)
                return schema.framed(mean, X, output), schema.framed(std, X, output)
            return schema.framed(mean_at(model, rows), X, output)

    def predict_dist(self, X: ArrayLike, include_noise: bool = True) -> PredictiveDistribution:
        """Return the predictive distribution: at each row a mixture of Gaussians.

        Parameters
        ----------
        X : array-like or frame of shape (n, n_features)
        include_noise : bool
            Whether it is that of a new observation y, or of the function f.

        Returns
        -------
        Mixture
            Its ``outside`` says how far each row lies outside the training data, in length scales of the
            kernel; 0 inside. If many rows lie outside, or some far outside, there is an
            :class:`~dsmgp.ExtrapolationWarning` that names the columns.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor(random_state=0).fit(X, X[:, 0] ** 2)
        >>> model.predict_dist([[0.5]]).mean.round(2)
        array([0.25])
        >>> model.predict_dist([[0.5]]).outside
        array([0.])
        """
        state = self.state_
        rows = state.schema.to_rows(X)
        state.warn_of_outside(rows.X)
        with exact_variances(self.variances == "exact"):
            return mixture_at(state.predictive, rows, include_noise, state.schema.single_output)

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
        include_noise: bool = False,
    ) -> Array:
        """Draw functions jointly at the rows of X: (n, n_samples) or (n, n_outputs, n_samples).

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, X[:, 0] ** 2)
        >>> model.sample_y([[0.2], [0.5], [0.8]], n_samples=4).shape
        (3, 4)
        """
        check_count("n_samples", n_samples)
        state, rng = self.state_, random_generator(random_state)
        draws = draws_at(state.predictive, state.schema.to_rows(X), n_samples, rng, include_noise)
        return draws[:, 0, :] if state.schema.single_output else draws

    def explain(
        self,
        X: ArrayLike,
        background: int | ArrayLike = 64,
        n_samples: int = 8,
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
        include_noise: bool = True,
    ) -> Explanation:
        """Explain predictions by Shapley values: what each column adds to mean and standard deviation.

        A prediction is compared with the average prediction of background rows. Columns that are not yet added
        come from these rows, whatever the others are (marginal, or interventional, expectations). Values sum to
        the prediction less that average. The inputs that one column became, such as those of a category's
        levels, are added together.

        Up to 8 columns, values are exact; that takes ``2 ** n_columns * background`` predictions for each row.
        With more, they are averages over random orders of the columns, which take about ``n_samples * n_columns
        * background`` predictions, and standard errors are returned, too.

        Parameters
        ----------
        X : array-like or frame of shape (n, n_features)
            The rows to explain.
        background : int, or array-like or frame of shape (n_background, n_features)
            How many training rows to draw for the background, or its rows.
        n_samples : int
            Orders drawn for each background row if there are more than 8 columns; at least 4.
        random_state : int, RandomState, Generator, or None
            Seeds the choice of background rows and orders.
        include_noise : bool
            Whether the standard deviation is that of a new observation y, or of the function f.

        Returns
        -------
        Explanation
            ``columns``, ``mean_values``, ``mean_base``, ``std_values``, ``std_base``, ``to_frame()``.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).uniform(size=(100, 2))
        >>> y = 10 * X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=100)
        >>> explanation = DSMGPRegressor("rbf", random_state=0).fit(X, y).explain([[1.0, 0.5]])
        >>> round(explanation.mean_base, 1), explanation.mean_values.round(1) + 0.0
        (5.5, array([[4.5, 0. ]]))
        """
        check_count("n_samples", n_samples, least=4)
        state, rng = self.state_, random_generator(random_state)
        schema, rows = state.schema, state.schema.to_numbers(X)
        if np.ndim(background) == 0 and not hasattr(background, "columns"):
            background_rows = random_rows(state.rows.X, check_count("background", background), rng)
        else:
            background_rows = schema.to_numbers(background)
        return shapley_values(
            state.predictive,
            rows,
            background_rows,
            schema.groups,
            n_samples,
            rng,
            include_noise,
            schema.output_names,
            schema.single_output,
        )

    def permutation_importance(
        self,
        X: ArrayLike,
        y: ArrayLike,
        n_repeats: int = 5,
        scores: str | Sequence[str] = ("nlpd", "rmse"),
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
    ) -> PermutationImportance:
        """Measure how much worse predictions of given rows become when a column is shuffled.

        Rows that the model was not fitted to say what a column is worth for new rows. All scores come from the
        same predictions. The inputs that one column of the table became are shuffled together.

        Parameters
        ----------
        X : array-like or frame of shape (n, n_features)
        y : array-like of shape (n,) or (n, n_outputs)
        n_repeats : int
            How often each column is shuffled.
        scores : str or sequence of str
            ``"nlpd"`` (negative log predictive density, which takes uncertainty into account), ``"rmse"``,
            ``"mae"``, ``"crps"``.
        random_state : int, RandomState, Generator, or None
            Seeds the shuffling.

        Returns
        -------
        PermutationImportance
            ``columns``, ``baseline``, ``importances``, ``importances_mean``, ``importances_std``,
            ``to_frame()``; by score.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).uniform(size=(200, 2))
        >>> y = 10 * X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=200)
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X[:100], y[:100])
        >>> result = model.permutation_importance(X[100:], y[100:])
        >>> result.columns, result.importances_mean["rmse"].round() + 0.0
        (('x0', 'x1'), array([4., 0.]))
        >>> model.feature_importances_.round(2)
        array([1., 0.])
        """
        check_count("n_repeats", n_repeats)
        state = self.state_
        given = state.schema.training_rows(X, y)
        return permutation_importance(
            state.predictive,
            given.X,
            given.Y,
            state.schema.groups,
            n_repeats,
            [scores] if isinstance(scores, str) else list(dict.fromkeys(scores)),
            random_generator(random_state),
        )

    def noise_at(self, X: ArrayLike) -> Array:
        """Predict the noise variance at the rows of X, in the units of y squared: (n,) or (n, n_outputs).

        It is the variance of y minus that of f: the noise of the leaves that a row reaches, with their
        scales, weighted as in predictions. It varies if leaves have been fine-tuned, or have scales of
        their own.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> of_y, of_f = (
        ...     model.predict_dist([[0.5]], include_noise=noisy).var for noisy in (True, False)
        ... )
        >>> bool(np.allclose(model.noise_at([[0.5]]), of_y - of_f))
        True
        """
        state = self.state_
        return state.schema.shaped(noise_at(state.predictive, state.schema.to_rows(X)))

    def predict_dataset(
        self,
        data: str | Path | Sequence[str | Path],
        out: str | Path,
        *,
        interval: float | Sequence[float] = (),
        quantiles: Sequence[float] = (),
        keep: Sequence[str] = (),
        include_noise: bool = True,
    ) -> int:
        """Predict the rows of Parquet files, and write the predictions to Parquet files.

        Parameters
        ----------
        data : path, glob, URL or sequence of them
            With the columns that the model was fitted to.
        out : path or URL
            The Parquet file to write; or a folder without files (one that exists, or a name that ends with a
            slash), for files ``part-00000.parquet`` and so on, whose rows are in the order of the data. Written
            completely or not at all. Those of a URL of another file system are first written to a temporary
            folder. There are mean and standard deviation of each target.
        interval : float or sequence of float
            Probabilities of central intervals, whose ends are written too. They take longer than the rest.
        quantiles : sequence of float
            Levels of quantiles to write.
        keep : sequence of str
            Columns of the data to copy.
        include_noise : bool
            Whether the spread is that of a new observation y, or of the function f.

        Returns
        -------
        int
            Number of rows.
        """
        from dsmgp.fitting.datasets.predict import predict_files

        state = self.state_
        intervals = [interval] if isinstance(interval, (int, float)) else list(interval)
        with progress_shown(self.verbose), exact_variances(self.variances == "exact"):
            n_rows, remarks = predict_files(
                state.predictive, state.schema, data, out, intervals, quantiles, keep, include_noise
            )
        for remark in remarks:
            logger.info("%s", remark)
        return n_rows

    def set_output(self, *, transform: str | None = None, predict: str | None = None) -> Self:
        """Set what :meth:`predict` returns: arrays, or frames of pandas or polars.

        Parameters
        ----------
        transform : str, optional
            Ignored; scikit-learn's pipelines pass it to all their steps.
        predict : "default", "input", "pandas", or "polars", optional
            ``"default"``: arrays. ``"input"``: a series (several outputs: a frame) of the kind of X, with its
            index, and arrays for arrays. ``"pandas"`` and ``"polars"``: always that kind. None changes nothing.

        Examples
        --------
        >>> import pandas as pd
        >>> X = pd.DataFrame({"x": [0.0, 0.5, 1.0, 1.5]}, index=list("abcd"))
        >>> model = DSMGPRegressor("rbf", random_state=0).set_output(predict="input")
        >>> model.fit(X, X["x"].rename("height")).predict(X[:2]).round(1)
        a    0.0
        b    0.5
        Name: height, dtype: float64
        >>> model.feature_names_in_
        array(['x'], dtype=object)
        """
        if predict is not None:
            check_choice("predict", predict, OUTPUTS)
            self._sklearn_output_config = {"predict": predict}  # which scikit-learn's clone keeps
        return self

    def summary(self) -> str:
        """Describe in text what was learned, in the user's units: relevance of inputs, noise, tree, evidence."""
        return summarise(self.state_.conditioned)

    def split_posterior(self, dimension: int | str = 0) -> Splits:
        """Posterior over the positions of change points, or of the tree's splits, along an input.

        With ``structure="changepoint"`` it is the exact posterior probability of a change in every gap between
        two rows. With other structures it is that of the splits in the partitions that were drawn: if the data
        favour some partitions, their splits mark changes of the function; otherwise they mark nothing.

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
        state = self.state_
        schema = state.schema
        number = input_number(dimension, schema.n_features, schema.input_names)
        splits = state.model.split_posterior(number, state.rows.X[:, number])
        return replace(splits, dates=schema.displayed_dates.get(number))

    def changepoints(
        self, level: float = 0.5, dimension: int | str | None = None
    ) -> list[ChangePoint]:
        """List the change points of at least a given posterior probability, in order of position.

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

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> y = (X[:, 0] > 0.5) + 0.05 * np.random.default_rng(0).normal(size=60)
        >>> (change,) = DSMGPRegressor("rbf", structure="changepoint").fit(X, y).changepoints()
        >>> round(change.position, 2)
        0.5
        """
        if dimension is None:
            dimension = self.state_.model.split_dimension
        return self.split_posterior(dimension).change_points(level)

    def to_gpytorch(self, leaf: int = 0, output: int = 0) -> gpytorch.models.ExactGP:
        """Return one leaf as an exact GP of GPyTorch, with its rows and hyperparameters, ready to predict.

        Parameters
        ----------
        leaf : int
            Its number: its place among the leaves of ``tree_``.
        output : int
            Which of several outputs.

        Returns
        -------
        gpytorch.models.ExactGP
            In the experts' units (standardised ones, unless ``standardize=False``); ``likelihood`` has the
            noise.

        Examples
        --------
        >>> import numpy as np, torch
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = DSMGPRegressor("rbf", standardize=False, random_state=0).fit(X, X[:, 0] ** 2)
        >>> leaf = model.to_gpytorch(leaf=0)
        >>> leaf.train_inputs[0].shape[1]
        1
        """
        state = self._state_for("to_gpytorch")
        require_torch("to_gpytorch()")
        from dsmgp.gpytorch_export import exact_leaf

        return exact_leaf(state.conditioned.mixture, leaf, output)

    def save(
        self, path: str | Path, include_factors: bool = False, own_modules: bool = False
    ) -> None:
        """Write the fitted model to one file, complete or not at all.

        The file holds arrays (safetensors) and a header in JSON: training rows, tree, hyperparameters, gate,
        scores. Nothing in it is executed when it is loaded. It takes about as much room as the training data.

        Parameters
        ----------
        path : str or Path
            Its usual ending is ``.dsmgp``. A file of that name is replaced. After :meth:`fit_dataset` it is a
            folder, which holds the rows too.
        include_factors : bool
            Ignored, with a warning: leaves are conditioned when they are first asked, which takes less time
            than reading their Cholesky factors did.
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
        if include_factors:
            warn_user(
                "include_factors is ignored: a model file without factors loads faster; leave it out",
                FutureWarning,
            )
        self._write(self.state_.conditioned, path, own_modules)

    @classmethod
    def load(
        cls,
        path: str | Path,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: gpytorch.means.Mean | None = None,
    ) -> Self:
        """Read a fitted model from a file that :meth:`save` wrote.

        Leaves are conditioned when they are first needed. Everything in the file is checked; a damaged
        file, or one that is no model, raises :class:`~dsmgp.ModelFileError`.

        Parameters
        ----------
        path : str or Path
            The file, or the folder of a model that was fitted to a dataset.
        kernel, mean : GPyTorch modules, optional
            Those of your own that the file was saved without.
        """
        with training_mode():
            model, state, output = read_model(cls, path, kernel, mean)
        model.set_output(predict=output)
        model._state = state
        return model

    plot_calibration = plots.plot_calibration
    plot_changepoints = plots.plot_changepoints
    plot_dependence = plots.plot_dependence
    plot_kernels = plots.plot_kernels
    plot_learning = plots.plot_learning
    plot_observed = plots.plot_observed
    plot_pit = plots.plot_pit
    plot_predictive = plots.plot_predictive
    plot_relevance = plots.plot_relevance
    plot_residuals = plots.plot_residuals
    plot_splits = plots.plot_splits
    plot_tree = plots.plot_tree

    # Fitted attributes, read-only. Before a fit they raise an AttributeError, so that hasattr returns False.

    @property
    def state_(self) -> FittedState:
        if "_state" not in self.__dict__:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._state

    n_features_in_ = FittedAttribute[int]("schema.n_columns")
    remarks_ = FittedAttribute[list[str]]("remarks")
    feature_importances_ = FittedAttribute[Array]("feature_importances")
    tree_ = FittedAttribute[Node]("user_tree")
    coordinates_ = FittedAttribute[Coordinates | None]("model.inputs.coordinates")
    posterior_weights_ = FittedAttribute[dict[Sum, Array]]("posterior_weights")
    kernel_posterior_ = FittedAttribute[list[RegionKernels]]("kernel_posterior")
    kernel_ = FittedAttribute[Any]("kernel")
    noise_ = FittedAttribute[float | list[float]]("noise")
    leaf_noise_ = FittedAttribute[Array]("leaf_noise")
    output_loading_ = FittedAttribute[Array]("model.outputs.loading")
    log_marginal_likelihood_ = FittedAttribute[float]("log_evidence")
    n_induced_trees_ = FittedAttribute[int]("model.n_induced_trees")
    kernel_scores_ = FittedAttribute[dict[str, float] | None]("search.kernel_scores")
    n_iter_ = FittedAttribute[int]("search.n_iterations")
    n_evaluations_ = FittedAttribute[int]("search.n_evaluations")

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        names = self.state_.schema.feature_names
        if names is None:
            raise AttributeError("feature_names_in_ is not available: X had no column names")
        return np.array(names, dtype=object)

    @property
    def row_ids_(self) -> NDArray[np.int64]:
        return self._state_for("row_ids_").rows.ids.copy()

    @property
    def fit_times_(self) -> dict[str, float]:
        return dict(self.state_.fit_times)

    @property
    def loo_score_(self) -> float:
        return self._loo_scores("loo_score_")[0]

    @property
    def loo_score_new_inputs_(self) -> float:
        return self._loo_scores("loo_score_new_inputs_")[1]

    @property
    def adapted_(self) -> list[str]:
        return list(self.state_.maintenance)

    # Internal

    def __sklearn_is_fitted__(self) -> bool:
        return "_state" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.input_tags.allow_nan = self.missing != "error"
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _repr_html_inner(self) -> str:
        """scikit-learn's diagram, and below it the summary."""
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

    @property
    def _output(self) -> str:
        """What :meth:`set_output` was given."""
        return str(getattr(self, "_sklearn_output_config", {}).get("predict", "default"))

    @contextmanager
    def _training(self) -> Iterator[FitConfig]:
        """Enter the context of a verb that changes the model, and yield the checked parameters."""
        with training_mode(self.verbose):
            yield check_parameters(self)

    def _state_for(self, name: str) -> FittedState:
        """Return the fitted state; raise if its model does not support this method or attribute."""
        state = self.state_
        for kind in (state.model, state.predictive):
            check_supported(kind, name)
        return state

    def _loo_scores(self, name: str) -> tuple[float, float]:
        scores = self._state_for(name).conditioned.reported_scores
        assert scores is not None
        return scores

    def _write(
        self,
        state: FittedState,
        path: str | Path,
        own_modules: bool = False,
    ) -> None:
        check_parameters(self)  # a file with other parameters could not be read
        parameters = self.get_params(deep=False)
        write_model(path, parameters, state, self._output, own_modules)


def load(
    path: str | Path,
    kernel: gpytorch.kernels.Kernel | None = None,
    mean: gpytorch.means.Mean | None = None,
) -> DSMGPRegressor:
    """Read a fitted model from a file; the same as :meth:`DSMGPRegressor.load`.

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


def fit_table(model: DSMGPRegressor, table: EncodedTable) -> DSMGPRegressor:
    """Fit to the encoded columns of a file, and keep how they became inputs, with remarks for the user."""
    check_spread(table.Y)
    rows = TrainingRows.first(table.X, table.Y, effects=table.effects)
    schema = InputSchema.of_encoded(table)
    with model._training() as config:
        model._state = fit_model(rows, schema, config)
    return model


def _warn_of(remarks: Sequence[str]) -> None:
    """Warn of what was left out of the training data; other remarks are logged."""
    for remark in remarks:
        if remark.endswith("left out"):
            warn_user(remark, topic=remark)
        else:
            logger.info("%s", remark)
