"""What a fitted estimator has to tell of what it learned: attributes, words, and where its function breaks."""

from __future__ import annotations

import html
from dataclasses import replace

import gpytorch
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from dsmgp.breaking import BreakingModel
from dsmgp.changeable import Changeable
from dsmgp.learn import Learned
from dsmgp.splits import ChangePoint, Splits
from dsmgp.summary import summarise
from dsmgp.summary_breaks import summarise_breaks
from dsmgp.tree import Node, Sum
from dsmgp.validation import input_number

__all__ = ["Told"]

Array = NDArray[np.float64]


class Told(Changeable):
    """Attributes of a fitted estimator, and what it says of itself."""

    n_features_in_: int
    kernel_scores_: dict[str, float] | None
    _learned: list[Learned]
    _squeeze: bool
    _target_names: list[str] | None

    def summary(self) -> str:
        """What was learned, in the user's units: relevance of inputs, noise, tree, evidence."""
        check_is_fitted(self, "_model")
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            names = [f"x{k}" for k in range(self.n_features_in_)]
        if isinstance(self._model, BreakingModel):
            return summarise_breaks(
                self._model, list(names), self.kernel_scores_, self._target_names
            )
        scores = (self.loo_score_, self.loo_score_new_inputs_)
        model = self._settled().model
        return summarise(model, list(names), scores, self.kernel_scores_, self._target_names)

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
        >>> from dsmgp import DSMGPRegressor
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
        return replace(found, dates=self._shown_dates.get(number))

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

        Examples
        --------
        >>> import numpy as np
        >>> from dsmgp import DSMGPRegressor
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> y = (X[:, 0] > 0.5) + 0.05 * np.random.default_rng(0).normal(size=60)
        >>> (change,) = DSMGPRegressor("rbf", structure="changepoint").fit(X, y).changepoints()
        >>> round(change.position, 2)
        0.5
        """
        check_is_fitted(self)
        if dimension is None:
            dimension = getattr(self._model, "dimension", 0)
        return self.split_posterior(dimension).change_points(level)

    def noise_at(self, X: ArrayLike) -> Array:
        """Variance of the noise at the rows of X, in the units of y squared: (n,) or (n, n_outputs).

        That of the leaves which a row reaches, with their scales, weighed as in predictions: what the variance
        of y has beyond that of f. It varies where leaves have been fine-tuned, or have scales of their own.

        Examples
        --------
        >>> import numpy as np
        >>> from dsmgp import DSMGPRegressor
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> of_y, of_f = (
        ...     model.predict_dist([[0.5]], include_noise=noisy).var for noisy in (True, False)
        ... )
        >>> bool(np.allclose(model.noise_at([[0.5]]), of_y - of_f))
        True
        """
        X = self._test_rows(X)
        self._refuse_breaks("noise_at", "noise_ is the same everywhere")
        return self._shaped(self._model.noise(X))

    @property
    def tree_(self) -> Node:
        return self._settled().model.tree

    @property
    def row_ids_(self) -> NDArray[np.int64]:
        self._fitted  # noqa: B018
        self._refuse_stored(
            "row_ids_", "rows are numbered in the order of the files", AttributeError
        )
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
        self._refuse_breaks(
            "a leave-one-out score",
            "log_marginal_likelihood_ is how models compare",
            AttributeError,
        )
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
        self._refuse_breaks("leaf_noise_", "noise_ is the same everywhere", AttributeError)
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
    def _rows(self) -> tuple[Array, Array]:
        """Training rows of now and their outputs, (n_rows, n_outputs), in the user's units."""
        self._fitted  # noqa: B018
        return self._changing.rows.X, self._changing.rows.Y

    def _shaped(self, values: Array) -> Array:
        return values[..., 0] if self._squeeze else values

    def _summary_html(self) -> str:
        text = html.escape(self.summary())
        return f"<details open><summary>What was learned</summary><pre>{text}</pre></details>"
