"""GP experts that share theta, learned jointly, and are asked together: what all rules to combine them stand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.baselines.division import divide
from dsmgp.baselines.estimator import Baseline, gaussian
from dsmgp.conditioned import Conditioned
from dsmgp.execution import as_numpy, as_tensor
from dsmgp.learn import Learned
from dsmgp.mixture import Mixture
from dsmgp.parameters import checked
from dsmgp.process import Family
from dsmgp.ragged import Ragged
from dsmgp.regressor import DSMGPRegressor
from dsmgp.routes import Routes
from dsmgp.train import Trainer
from dsmgp.tree import Leaf, Node
from dsmgp.validation import random_generator

__all__ = ["Committee", "Opinions"]

Array = NDArray[np.float64]
# Numbers that experts say at once: a few arrays of 32 MB.
AT_ONCE = 2**22


@dataclass(frozen=True)
class Opinions:
    """What every expert says of f at some rows, in the units the experts see.

    Attributes
    ----------
    mean, variance : ndarrays of shape (n_experts, n, n_outputs)
    prior : ndarray of shape (n, n_outputs)
        Variance of f before anything is seen.
    noise : ndarray of shape (n_outputs,)
    """

    mean: Array
    variance: Array
    prior: Array
    noise: Array


class Committee(Baseline):
    """Experts on subsets of the rows, all asked at every test row. Children say how opinions are combined.

    Parameters
    ----------
    experts : {"random", "balanced", "paper"} or a tree, default="random"
        Who gets which rows: random subsets, or the parts of one partition, as a deep structured mixture of that
        structure would average over; of a tree (such as ``DSMGPRegressor().tree_``) one of its partitions.
    leaf_size : int, default=100
        M, rows of an expert.
    kernel : str or gpytorch kernel, default="rbf"
        One for all experts; its hyperparameters and the noise are learned on all of them together.
    noise_variance, optimizer, max_iter, standardize, device, memory_limit, random_state
        See :class:`~dsmgp.DSMGPRegressor`.

    Attributes
    ----------
    kernel_, noise_ : lists of gpytorch kernels and floats
        As learned, for each output, in the units the experts see.
    n_experts_ : int
    n_iter_ : int
        Iterations that the optimiser took, of the output that took most.
    n_evaluations_ : int
        Of the evidence and its gradient.
    """

    def __init__(
        self,
        experts: str | Node = "random",
        leaf_size: int = 100,
        kernel: str | gpytorch.kernels.Kernel = "rbf",
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
    def kernel_(self) -> list[gpytorch.kernels.Kernel]:
        return [process.kernel for process in self._family.processes]

    @property
    def noise_(self) -> list[float]:
        return [process.noise for process in self._family.processes]

    @property
    def n_experts_(self) -> int:
        return self._conditioned.experts.n_leaves

    def adopt(self, fitted: Committee) -> Self:
        """Take over the experts of another committee, which learned them: rules differ in how they are combined only.

        Examples
        --------
        >>> from dsmgp.baselines import BCM, PoE
        >>> X = np.linspace(0, 1, 40)[:, None]
        >>> poe = PoE(leaf_size=20, random_state=0).fit(X, X[:, 0])
        >>> bcm = BCM().adopt(poe)
        >>> bcm.noise_ == poe.noise_
        True
        """
        if fitted._layout() != self._layout():
            raise ValueError(
                f"a {type(self).__name__} cannot adopt the experts of a {type(fitted).__name__}, which are laid "
                "out otherwise; fit it instead"
            )
        if not fitted.__sklearn_is_fitted__():
            raise ValueError(
                f"the {type(fitted).__name__} to adopt from is not fitted yet; call fit first"
            )
        shared = set(self._get_param_names()) & set(Committee._get_param_names())
        self.set_params(**{name: getattr(fitted, name) for name in shared})
        learned = set(fitted.__dict__) - set(fitted._get_param_names())
        self.__dict__.update({name: fitted.__dict__[name] for name in learned})
        return self

    def _layout(self) -> str:
        """What the experts stand for: those of one kind can be taken over."""
        return "disjoint"

    # Fitting

    def _fit(self, X: Array, Y: Array) -> None:
        trainer = self._trainer(X, Y)
        disjoint = self._divide(trainer)
        family = trainer.build(self.kernel)
        learned: list[Learned] = []
        if trainer.settings.optimizer is not None:
            learned = trainer.learn(self._learned_on(disjoint, trainer), family)
        self.n_iter_ = max((one.n_iterations for one in learned), default=0)
        self._condition(trainer, self._arrange(disjoint), family)

    def _trainer(self, X: Array, Y: Array) -> Trainer:
        """Rows and settings, checked in the words in which a regressor's are."""
        asked = DSMGPRegressor(
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
        return Trainer(X, Y, checked(asked), random_generator(self.random_state))

    def _divide(self, trainer: Trainer) -> list[Leaf]:
        """Experts that no two have a row in common."""
        return divide(self.experts, trainer.X, self.leaf_size, trainer.rng, trainer.inputs.scale)

    def _learned_on(self, disjoint: list[Leaf], trainer: Trainer) -> list[Leaf]:
        """Experts whose evidence is maximised: the sum over all of them is that of independent experts."""
        return disjoint

    def _arrange(self, disjoint: list[Leaf]) -> list[Leaf]:
        """Experts that are asked, of those that theta was learned on."""
        return disjoint

    def _condition(
        self,
        trainer: Trainer,
        some: Sequence[Leaf],
        family: Family,
        leave_out: NDArray[np.int64] | None = None,
    ) -> None:
        self._family, self._inputs, self._outputs = family, trainer.inputs, trainer.outputs
        naturals = family.naturals(trainer.X.shape[1])
        memory = 0.5 * trainer.memory
        experts = trainer.experts(some, [family])
        self._conditioned = Conditioned(experts, naturals, memory, leave_out)
        self.n_evaluations_ = trainer.n_evaluations

    # Asking

    def _law(self, X: Array) -> Mixture:
        mean = np.empty((len(X), self._outputs.n_outputs))
        variance = np.empty_like(mean)
        largest = int(self._conditioned.leaf_rows.sizes.max())
        step = max(1, AT_ONCE // max(self.n_experts_ * mean.shape[1], largest))
        for first in range(0, len(X), step):
            rows = slice(first, first + step)
            mean[rows], variance[rows] = self._combine(self._opinions(X[rows]))
        return gaussian(mean, variance, self._outputs, self._squeeze)

    def _combine(self, opinions: Opinions) -> tuple[Array, Array]:
        """Mean and variance of y, (n, n_outputs)."""
        raise NotImplementedError

    def _opinions(self, X: Array) -> Opinions:
        conditioned, n = self._conditioned, len(X)
        everyone = np.arange(self.n_experts_)
        routes = Routes(everyone, Ragged.of([np.arange(n)] * len(everyone)))
        Z = self._seen(X)
        mean, variance = conditioned.predict(routes, Z)
        shape = (len(everyone), n, self._outputs.n_outputs)
        prior = self._prior(Z)
        # At a row seen without noise rounding may leave nothing, or less: a precision needs a little.
        floored = np.maximum(variance.reshape(shape), 1e-12 * prior)
        return Opinions(mean.reshape(shape), floored, prior, conditioned.noise[0])

    def _seen(self, X: Array) -> Tensor:
        return as_tensor(self._inputs.to_experts(X), self._conditioned.experts.X)

    def _prior(self, Z: Tensor) -> Array:
        """Variance of f at rows before anything is seen, (n, n_outputs)."""
        bound = self._conditioned.bound
        found = [
            bound(output, [0]).variance(Z.unsqueeze(0))[0]
            for output in range(self._outputs.n_outputs)
        ]
        return as_numpy(torch.stack(found, -1))
