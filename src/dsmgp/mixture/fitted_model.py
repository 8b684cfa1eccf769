"""The interface of a fitted model, which the mixture and the change-point model both implement.

The estimator, plots, reports and the command line use this interface only. What a kind of model does not
support, arguments of a fit included, is listed here, once for each kind; a model names its list in
``unsupported``, and :func:`check_supported` refuses what is on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.gp.process import Family, Process
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.mixture.edges import Edges
from dsmgp.mixture.inference import Posterior
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution
from dsmgp.mixture.splits import Splits
from dsmgp.tree.nodes import Node, Sum

__all__ = [
    "CHANGE_POINTS",
    "FIT_DATASET",
    "ROWS_IN_FILES",
    "ROWS_IN_MEMORY",
    "SEVERAL_HYPOTHESES",
    "Description",
    "FittedModel",
    "Predictive",
    "Unsupported",
    "check_supported",
    "supports",
]


@dataclass(frozen=True)
class Unsupported:
    """Methods and attributes of the estimator, and arguments of a fit, that a kind of model does not support.

    Attributes
    ----------
    reason : str
        Completes "... is not available".
    remedies : mapping of str to str
        By method, attribute or argument, what to use instead.
    """

    reason: str = ""
    remedies: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, name: str) -> NoReturn:
        """Raise an InputError; for an attribute an AttributeError, so that ``hasattr`` works."""
        error = AttributeError if name.endswith("_") else InputError
        raise error(f"{name} is not available {self.reason}; {self.remedies[name]}")

    def refuse_given(self, given: Mapping[str, bool]) -> None:
        """Refuse the first argument that was given."""
        for name, is_given in given.items():
            if is_given:
                self.refuse(name)


ROWS_IN_MEMORY = Unsupported(
    "after fit: rows are in memory",
    {"partial_fit_dataset": "use partial_fit", "forget_dataset": "use forget"},
)
ROWS_IN_FILES = Unsupported(
    "after fit_dataset: rows are in files",
    {
        "partial_fit": "use partial_fit_dataset",
        "forget": "use forget_dataset",
        "finetune": "leaves have scales of their own already",
        "to_gpytorch": "kernel_ and noise_ are what was learned",
        "row_ids_": "rows are numbered in the order of the files",
    },
)
FIT_DATASET = Unsupported(
    "in fit_dataset",
    {
        "categorical_features": "store such columns as text: types of columns say which are categories",
        "hypotheses='average'": "use fit, or hypotheses=None: each hypothesis would hold all rows in memory",
        "objective='full'": "leave objective out, or fit a part of the rows in memory",
        "a structure other than 'balanced' or 'paper'": "fit a part of the rows in memory",
    },
)
CHANGE_POINTS = Unsupported(
    "with structure='changepoint'",
    {
        "a list of kernels": "give one, or 'auto'",
        "executor": "leave it out: these fits run in this process",
        "checkpoint": "leave it out: these fits run in this process",
        "weights='uniform'": "leave weights out: segmentations are weighted by their posterior probability",
        "output_warp": "leave it out, and fit transformed outputs such as log(y)",
        "noise": "leave it out, or allow for outliers with ChangePoints(outliers=True)",
        "sample_weight": "leave it out, and repeat rows instead",
        "partial_fit": "call fit on all rows",
        "forget": "call fit on the rows that stay",
        "partial_fit_dataset": "call fit on all rows",
        "forget_dataset": "call fit on the rows that stay",
        "finetune": "use another structure",
        "to_gpytorch": "kernel_ and noise_ have the learned hyperparameters",
        "loo_score_": "compare models by log_marginal_likelihood_",
        "loo_score_new_inputs_": "compare models by log_marginal_likelihood_",
    },
)
SEVERAL_HYPOTHESES = Unsupported(
    "for a mixture over several hypotheses", {"finetune": "fit with hypotheses=None first"}
)


@dataclass(frozen=True)
class Description:
    """The lines of a summary that describe a model, apart from its kernels.

    Attributes
    ----------
    title : str
    facts : sequence of str
        Lines about structure, evidence and weights.
    kernel_notes : sequence of str
        Lines about how the kernels of leaves differ.
    kernel_score : str
        What the scores of the kernels that were tried are, if not leave-one-out scores.
    """

    title: str
    facts: Sequence[str]
    kernel_notes: Sequence[str] = ()
    kernel_score: str = ""


class Predictive(Protocol):
    """What predicts. Inputs and predictions are in the user's units; arrays have the outputs in the last axis."""

    @property
    def outputs(self) -> OutputScaling: ...
    @property
    def unsupported(self) -> Unsupported: ...
    @property
    def pool(self) -> Any:
        """The workers that predict, if leaves are in shards; None if these are in this process."""

    def mean(self, X: Array) -> Array:
        """Predictive mean, (n, n_outputs)."""

    def moments(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Predictive mean and standard deviation, (n, n_outputs) each."""

    def mixture(
        self, X: Array, include_noise: bool = True, squeeze: bool = True
    ) -> PredictiveDistribution:
        """Predictive distribution at each row.

        Parameters
        ----------
        X : ndarray of shape (n, n_inputs)
        include_noise : bool
            Whether to predict a new observation y, or the function f.
        squeeze : bool
            Whether moments of a single output have no axis for it.
        """

    def covariance(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Predictive mean (n, n_outputs) and joint covariance of each output (n_outputs, n, n)."""

    def draws(
        self, X: Array, n_samples: int, rng: np.random.Generator, include_noise: bool = False
    ) -> Array:
        """Joint draws over the rows, (n, n_outputs, n_samples)."""

    def noise_at(self, X: Array) -> Array:
        """Noise variance at each row, (n, n_outputs)."""

    def outside(self, X: Array) -> Array:
        """How far rows lie outside the training data, in length scales, (n,); 0 inside."""

    def outside_by_input(self, X: Array) -> Array:
        """The same by each input alone, (n, n_inputs)."""


class FittedModel(Predictive, Protocol):
    """A fitted model: what it has learned, and its predictions."""

    @property
    def tree(self) -> Node: ...
    @property
    def families(self) -> list[Family]:
        """Kernel, mean and noise of the leaves; several if leaves differ in them."""

    @property
    def processes(self) -> tuple[Process, ...]:
        """The GP of each output, that of the first family."""

    @property
    def inputs(self) -> InputScaling: ...
    @property
    def weights(self) -> str:
        """``"gated"``, ``"posterior"`` or ``"uniform"``."""

    @property
    def n_rows(self) -> int:
        """Number of training rows."""

    @property
    def has_rows_in_files(self) -> bool:
        """Whether the training rows are in files."""

    @property
    def posterior(self) -> Posterior:
        """Posterior over the induced trees."""

    @property
    def log_evidence(self) -> float:
        """Log density of the training outputs."""

    @property
    def n_induced_trees(self) -> int:
        """Number of partitions that are averaged."""

    @property
    def leaf_noise(self) -> Array:
        """Noise variances in the experts' units, (n_leaves, n_outputs)."""

    @property
    def thetas(self) -> list[Array] | None:
        """By output, the hyperparameters of each leaf if leaves were fine-tuned."""

    @property
    def edges(self) -> Edges | None:
        """Ranges of the inputs in the training rows."""

    @property
    def has_change_points(self) -> bool:
        """Whether its splits are change points, over whose positions predictions are averaged."""

    @property
    def split_dimension(self) -> int:
        """The input whose splits are shown unless another is given."""

    @property
    def kernel_sums(self) -> list[tuple[Sum, list[int]]]:
        """The sum nodes over kernels, and the families of their children."""

    @property
    def outlier_probability(self) -> Array | None:
        """Posterior probability of each training row to be an outlier, if the model allows for outliers."""

    def leaf_weights(self, X: Array) -> Array:
        """Mixture weight of every leaf, averaged over the rows of X, (n_leaves,)."""

    def split_posterior(self, dimension: int, values: Array) -> Splits:
        """Posterior over splits and change points along an input whose training values are ``values``."""

    def description(self, input_names: Sequence[str], output_names: Sequence[str]) -> Description:
        """Return the lines of a summary."""


def supports(model: Predictive, name: str) -> bool:
    """Return whether a model supports a method or an attribute of the estimator."""
    return name not in model.unsupported.remedies


def check_supported(model: Predictive, name: str) -> None:
    """Refuse a method or an attribute of the estimator that a model does not support."""
    if not supports(model, name):
        model.unsupported.refuse(name)
