"""GP experts on subsets of the rows with jointly learned hyperparameters: the base of all rules that combine them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp._util.ragged import Ragged
from dsmgp._util.validation import random_generator
from dsmgp.baselines.division import divide
from dsmgp.baselines.estimator import Baseline
from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.config import FitConfig, check_parameters
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import learn_family
from dsmgp.fitting.rows.leaf_setup import build_family, set_up_leaves
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.process import Family
from dsmgp.regressor import DSMGPRegressor
from dsmgp.tree.nodes import Leaf, Node
from dsmgp.tree.routing import Routes

if TYPE_CHECKING:
    import gpytorch

__all__ = ["Committee", "ExpertPredictions"]

# Numbers of one array of predictions that is held at a time, 32 MB.
CHUNK = 2**22


@dataclass(frozen=True)
class ExpertPredictions:
    """Predictions of f by every expert at test rows, in the units of the leaf GPs.

    Attributes
    ----------
    mean, variance : ndarrays of shape (n_experts, n, n_outputs)
    prior : ndarray of shape (n, n_outputs)
        Prior variance of f.
    noise : ndarray of shape (n_outputs,)
    """

    mean: Array
    variance: Array
    prior: Array
    noise: Array


class Committee(Baseline):
    """Experts on subsets of the rows, all of which predict at every test row. Subclasses combine their predictions.

    ``noise_variance``, ``optimizer``, ``max_iter``, ``standardize``, ``device``, ``memory_limit`` and
    ``random_state`` are those of :class:`~dsmgp.DSMGPRegressor`.

    Parameters
    ----------
    experts : "random", "balanced", "paper" or a tree, default="random"
        How rows are divided: random subsets, or the parts of one partition, as a deep structured mixture of that
        structure would average over; of a tree (such as ``DSMGPRegressor().tree_``) one of its partitions.
    leaf_size : int, default=100
        M, rows of an expert.
    kernel : str, Kernel or gpytorch kernel, default="rbf"
        One for all experts; its hyperparameters and the noise are learned on all of them together.

    Attributes
    ----------
    kernel_, noise_ : lists of kernels and floats
        As learned, for each output, in the units of the leaf GPs. Kernels are of the class
        :class:`~dsmgp.gp.kernels.Kernel`, or GPyTorch's if such a kernel was given.
    n_experts_ : int
    n_iter_ : int
        Iterations of the optimiser, for the output that took most.
    n_evaluations_ : int
        Evaluations of the evidence and its gradient.
    """

    #: What the experts stand for: committees of one layout can take over each other's experts.
    _layout = "disjoint"

    def __init__(
        self,
        experts: str | Node = "random",
        leaf_size: int = 100,
        kernel: str | Kernel | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        optimizer: str | None = "lbfgs",
        max_iter: int | None = None,
        standardize: bool = True,
        device: str = "auto",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        self.experts = experts
        self.leaf_size = leaf_size
        self.kernel = kernel
        self.noise_variance = noise_variance
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.standardize = standardize
        self.device = device
        self.memory_limit = memory_limit
        self.random_state = random_state

    @property
    def kernel_(self) -> list[Any]:
        return [process.kernel for process in self._family.processes]

    @property
    def noise_(self) -> list[float]:
        return [process.noise for process in self._family.processes]

    @property
    def n_experts_(self) -> int:
        return self._posterior.leaf_gps.n_leaves

    def adopt(self, fitted: Committee) -> Self:
        """Take over the experts of a fitted committee: rules differ only in how predictions are combined.

        Examples
        --------
        >>> from dsmgp.baselines import BCM, PoE
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> poe = PoE(leaf_size=20, random_state=0).fit(X, X[:, 0])
        >>> bcm = BCM().adopt(poe)
        >>> bcm.noise_ == poe.noise_
        True
        """
        if fitted._layout != self._layout:
            raise InputError(
                f"a {type(self).__name__} cannot adopt the experts of a {type(fitted).__name__}, which are laid "
                "out otherwise; fit it instead"
            )
        if not fitted.__sklearn_is_fitted__():
            raise InputError(
                f"the {type(fitted).__name__} to adopt from is not fitted yet; call fit first"
            )
        shared = set(self._get_param_names()) & set(Committee._get_param_names())
        self.set_params(**{name: getattr(fitted, name) for name in shared})
        learned = set(fitted.__dict__) - set(fitted._get_param_names())
        self.__dict__.update({name: fitted.__dict__[name] for name in learned})
        return self

    # Fitting

    def _fit(self, X: Array, Y: Array) -> None:
        config, rng = self._config(), random_generator(self.random_state)
        data = ScaledRows.of(X, Y, config)
        disjoint = self._divide(data, rng)
        family = build_family(self.kernel, data, config)
        self.n_iter_ = self.n_evaluations_ = 0
        learned_on: list[Leaf] | None = None
        if config.optimizer is not None:
            learned_on = self._learned_on(disjoint, data, rng)
            gps = set_up_leaves(learned_on, family.leaf_kernels, data, config)
            family, searches = learn_family(gps, family, FitContext(config, rng))
            self.n_iter_ = max(search.n_iterations for search in searches)
            self.n_evaluations_ = sum(search.n_evaluations for search in searches)
        experts = self._arrange(disjoint)
        if learned_on is not experts:
            gps = set_up_leaves(experts, family.leaf_kernels, data, config)
        self._condition(gps, family, data, config)

    def _config(self) -> FitConfig:
        """Validate the parameters as those of a regressor."""
        regressor = DSMGPRegressor(
            kernel=self.kernel,
            noise_variance=self.noise_variance,
            leaf_size=self.leaf_size,
            weights="posterior",
            optimizer=self.optimizer,
            max_iter=self.max_iter,
            standardize=self.standardize,
            device=self.device,
            memory_limit=self.memory_limit,
        )
        return check_parameters(regressor)

    def _divide(self, data: ScaledRows, rng: np.random.Generator) -> list[Leaf]:
        """Divide the rows among experts, each row to one of them."""
        return divide(self.experts, data.X, self.leaf_size, rng, data.inputs.scale)

    def _learned_on(
        self, disjoint: list[Leaf], data: ScaledRows, rng: np.random.Generator
    ) -> list[Leaf]:
        """Return the experts whose evidence is maximised, summed as that of independent experts."""
        return disjoint

    def _arrange(self, disjoint: list[Leaf]) -> list[Leaf]:
        """Return the experts that predict."""
        return disjoint

    def _condition(self, gps: LeafGPs, family: Family, data: ScaledRows, config: FitConfig) -> None:
        self._family, self._inputs, self._outputs = family, data.inputs, data.outputs
        self._posterior = gps.condition(family.kernel_parameters, 0.5 * config.memory)

    # Predicting

    def _chunk_rows(self) -> int:
        largest = int(self._posterior.leaf_rows.sizes.max())
        return max(1, CHUNK // max(self.n_experts_ * self._outputs.n_outputs, largest))

    def _moments(self, X: Array) -> tuple[Array, Array]:
        return self._combine(self._predictions(X))

    def _combine(self, predictions: ExpertPredictions) -> tuple[Array, Array]:
        """Return mean and variance of y, (n, n_outputs)."""
        raise NotImplementedError

    def _predictions(self, X: Array) -> ExpertPredictions:
        experts, Z = np.arange(self.n_experts_), self._inputs.to_experts(X)
        routes = Routes(experts, Ragged.of([np.arange(len(X))] * len(experts)))
        mean, variance = self._posterior.predict(routes, Z)
        shape = (len(experts), len(X), self._outputs.n_outputs)
        prior = self._prior_variance(Z)
        # At a noise-free training row rounding may leave zero or less, which has no precision.
        variance = np.maximum(variance.reshape(shape), 1e-12 * prior)
        return ExpertPredictions(mean.reshape(shape), variance, prior, self._posterior.noise[0])

    def _prior_variance(self, Z: Array) -> Array:
        """Return the prior variance of f at scaled rows, (n, n_outputs)."""
        bound, n_outputs = self._posterior.bound, self._outputs.n_outputs
        return np.stack([bound(output, 0).variance(Z) for output in range(n_outputs)], axis=-1)
