"""Estimators whose rows come and go, and whose leaves are tuned, after a fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from dsmgp.breaking import BreakingModel
from dsmgp.breaks import ChangePoints, has_breaks, with_changes
from dsmgp.checkpoint import checkpointed
from dsmgp.effort import EFFORTS
from dsmgp.executor import LocalExecutor
from dsmgp.finetune import finetune
from dsmgp.fit import Fitted, fit
from dsmgp.fit_breaks import fit_breaks
from dsmgp.guard import progress_shown, unchanged_on_error
from dsmgp.model import Model
from dsmgp.parameters import checked
from dsmgp.rows import new_rows, training_rows
from dsmgp.settings import Settings
from dsmgp.timeline import Dates, date_inputs, dates_as_numbers, numbers_like
from dsmgp.updates import Changing, Rows
from dsmgp.validation import (
    check_count,
    check_noise,
    check_row_ids,
    input_number,
    random_generator,
)

__all__ = ["Changeable", "numbered"]

Array = NDArray[np.float64]
logger = logging.getLogger("dsmgp")


class Changeable:
    """The state of a fitted estimator, and the methods that change it."""

    fit: Any
    random_state: Any
    checkpoint: Any
    verbose: bool
    _changing: Changing
    _model: Model
    _dates: dict[int, Dates]

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        noise: ArrayLike | None = None,
        adapt: bool = True,
    ) -> Self:
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
        >>> from dsmgp import DSMGPRegressor
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DSMGPRegressor(random_state=0).fit(X[:50], np.sin(6 * X[:50, 0]))
        >>> model.partial_fit(X[50:], np.sin(6 * X[50:, 0])).predict([[1.0]]).round(1)
        array([-0.3])
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, noise)
        self._refuse_breaks("partial_fit", "call fit on all rows")
        self._refuse_stored("partial_fit", "call fit_dataset on all files")
        with unchanged_on_error(self), progress_shown(self.verbose):
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

    def forget(self, row_ids: ArrayLike, adapt: bool = True) -> Self:
        """Drop training rows by their numbers, as if they had never been there.

        Rows are numbered in order of arrival: those of ``fit`` from 0 on, those of later ``partial_fit`` calls
        after them. ``row_ids_`` lists what is there, so ``model.forget(model.row_ids_[:-1000])`` keeps a window of the
        last 1,000 rows.

        Examples
        --------
        >>> import numpy as np
        >>> from dsmgp import DSMGPRegressor
        >>> X = np.linspace(0, 1, 60)[:, None]
        >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> model.forget([0, 1, 59]).row_ids_[:3]
        array([2, 3, 4])
        """
        check_is_fitted(self)
        self._refuse_breaks("forget", "call fit on the rows that stay")
        self._refuse_stored("forget", "call fit_dataset on the files that stay")
        with unchanged_on_error(self), progress_shown(self.verbose):
            ids = check_row_ids(row_ids)
            self._changing.rows.places(ids)  # all of them may go, before any goes
            self._adapt_through(len(ids), adapt, lambda state, some: state.without(ids[some]))
        return self

    def finetune(
        self,
        max_iter: int = 40,
        similarity: Any = "overlap",
        parameters: str | Sequence[str] = "noise",
        rounds: int = 2,
        weights: str | None = None,
    ) -> Self:
        """Give every leaf hyperparameters of its own, tied to those of the leaves that are like it (the paper's
        eq. 12).

        Leaf i maximises ``sum_j S_ij r_j log p(y_j | X_j, theta_i)``, from where it stands: after fit, or after
        the last fine-tuning. Scales of the leaves, gate and leave-one-out scores are then made again.
        ``kernel_`` and ``noise_`` stay those that fit has learned for all.

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
        >>> from dsmgp import DSMGPRegressor
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
        self._refuse_stored("finetune", "leaves have scales of their own already")
        with unchanged_on_error(self), progress_shown(self.verbose):
            state = self._settled()
            tuned = finetune(
                state.model,
                state.rows.X,
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

    @property
    def _fitted(self) -> Model:
        if "_model" not in self.__dict__:  # so that hasattr answers no before fit
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._model

    def __sklearn_is_fitted__(self) -> bool:
        return "_model" in self.__dict__

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

    def _fit(self, rows: Rows, settings: Settings, rng: np.random.Generator) -> Changing:
        if has_breaks(settings.structure):
            if self.checkpoint is not None or not isinstance(settings.executor, LocalExecutor):
                raise ValueError(
                    "executor and checkpoint cannot be given where leaves may break (structure='changepoint'): such a fit runs in this "
                    "process; leave them out"
                )
            if rows.noise is not None:
                raise ValueError(
                    "noise cannot be given where leaves may break (structure='changepoint'); leave it out, or allow "
                    "for outliers with ChangePoints(outliers=True)"
                )
            fitted = fit_breaks(rows.X, rows.Y, settings, rng)
        else:
            seeded = self.random_state is not None
            with checkpointed(self.checkpoint, rows.tables, settings, rng, seeded) as remember:
                fitted = fit(rows.X, rows.Y, settings, rng, rows.noise, remember)
        self._tell(fitted)
        scores = (fitted.loo_score, fitted.loo_score_new_inputs)
        return Changing.first(fitted.model, rows, settings.local_scale, scores)

    def _tell(self, fitted: Fitted) -> None:
        """How it was found."""
        self._learned = fitted.learned
        self.n_evaluations_ = fitted.n_evaluations
        self.kernel_scores_ = fitted.kernel_scores or None

    def _change_to(self, state: Changing) -> None:
        self._changing = state
        self._model = state.model

    def _settled(self) -> Changing:
        """With nothing left to be done about rows that have come or gone."""
        self._fitted  # noqa: B018  # hasattr answers no before fit
        self._change_to(self._changing.settled)
        return self._changing

    def _refuse_breaks(self, what: str, remedy: str, kind: type[Exception] = ValueError) -> None:
        """Attributes that a model cannot have are refused with an AttributeError, as ``hasattr`` expects."""
        if isinstance(self._model, BreakingModel):
            raise kind(
                f"{what} is not available where leaves may break (structure='changepoint'); {remedy}"
            )

    def _refuse_stored(self, what: str, remedy: str, kind: type[Exception] = ValueError) -> None:
        seen = getattr(self._model.experts, "experts", None)
        if getattr(seen, "store", None) is not None:
            raise kind(f"{what} is not available after fit_dataset: rows are in files; {remedy}")

    def _training_rows(self, X: ArrayLike, y: ArrayLike, reset: bool = True) -> tuple[Array, Array]:
        """Rows to fit, or, without ``reset``, to add to those there are."""
        if reset:
            X, self._dates = dates_as_numbers(X)
        else:
            X = numbers_like(X, self._dates, getattr(self, "feature_names_in_", None))
        return training_rows(self, X, y, reset)

    @property
    def _shown_dates(self) -> dict[int, Dates]:
        """Inputs whose numbers stand for dates: they were given as such, or a table had them."""
        return self._dates or date_inputs(getattr(self, "_table", None))

    def _test_rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return new_rows(
            self, numbers_like(X, self._dates, getattr(self, "feature_names_in_", None))
        )


def numbered(settings: Settings, n_inputs: int, names: Sequence[str] | None) -> Settings:
    """The input that orders rows by its number."""

    def known(changes: ChangePoints) -> ChangePoints:
        return replace(changes, dimension=input_number(changes.dimension, n_inputs, names))

    asked = settings.structure
    if isinstance(asked, ChangePoints):
        return replace(settings, structure=known(asked))
    if isinstance(asked, str) or not has_breaks(asked):
        return settings
    return replace(settings, structure=with_changes(asked, known))
