"""The process of a named kernel and a named mean: transforms, priors and gradients in closed form, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.errors import InputError
from dsmgp.gp.kernels import Kernel, KernelTerm
from dsmgp.gp.leaf_kernels import MetricKernel, StationaryKernel, SumKernel
from dsmgp.gp.terms import STATIONARY, Term, kernel_parts

__all__ = [
    "LogNormal",
    "NamedProcess",
    "Normal",
    "ParameterBlock",
    "build_named_process",
    "leaf_kernel",
]


@dataclass(frozen=True, eq=False)
class LogNormal:
    """A prior whose logarithm is normal with mean ``loc`` and standard deviation ``scale``, entry by entry."""

    loc: Array
    scale: float


@dataclass(frozen=True, eq=False)
class Normal:
    """A normal prior with mean ``loc`` and standard deviation ``scale``, entry by entry."""

    loc: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class ParameterBlock:
    """Hyperparameters of one name, next to each other in theta.

    Attributes
    ----------
    name : str
        "mean", "outputscale", "lengthscale", "metric", "alpha", "period_length" or "noise".
    size : int
    transform : "exp", "softplus", or "identity"
        From theta to the value, to which ``lower`` is added.
    lower : float
        Least value.
    prior : LogNormal or Normal, optional
        Of the value: log-normal only with transform "exp", normal only with transform "identity".
    """

    name: str
    size: int
    transform: str = "exp"
    lower: float = 0.0
    prior: LogNormal | Normal | None = None

    def to_theta(self, value: ArrayLike) -> Array:
        """Return the entries of theta at which the parameters have these values."""
        above = np.broadcast_to(np.asarray(value, dtype=np.float64), self.size) - self.lower
        if self.transform == "exp":
            return np.log(above)
        if self.transform == "softplus":
            return np.asarray(above + np.log(-np.expm1(-above)))
        return np.array(above)


@dataclass(frozen=True, eq=False)
class NamedProcess:
    """The :class:`~dsmgp.gp.process.Process` of a named kernel and a named mean.

    Attributes
    ----------
    leaf_kernel : StationaryKernel, MetricKernel, or SumKernel
    blocks : tuple of ParameterBlock
        In the order of theta: those of the mean, of each term (output scale, length scales or metric, shape or periods, then length
        scales and shape or periods of further factors), and the noise.
    theta : ndarray of shape (n_parameters,)
    ties : tuple of int, optional
        For each input, which of the length scales in theta it has; without it each has its own. Inputs that are levels of one
        category share one, so that all levels are equally far from one another.
    """

    leaf_kernel: StationaryKernel | MetricKernel | SumKernel
    blocks: tuple[ParameterBlock, ...]
    theta: Array
    ties: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        theta = np.array(self.theta, dtype=np.float64)
        theta.flags.writeable = False
        object.__setattr__(self, "theta", theta)

    @property
    def names(self) -> list[str]:
        return [block.name for block in self.blocks for _ in range(block.size)]

    @property
    def noise(self) -> float:
        return float(self._values(self.theta)[-1])

    @property
    def kernel(self) -> Kernel:
        if isinstance(self.leaf_kernel, MetricKernel):
            raise InputError("a metric has no length scales: see metric_directions")
        return Kernel.of(self.leaf_kernel.terms, self.kernel_parameters())

    @classmethod
    def of(
        cls,
        leaf_kernel: StationaryKernel | MetricKernel | SumKernel,
        parts: Iterable[tuple[ParameterBlock, Array]],
        ties: tuple[int, ...] | None = None,
    ) -> NamedProcess:
        """Return the process of blocks, each with its entries of theta."""
        blocks, theta = zip(*parts, strict=True)
        return cls(leaf_kernel, blocks, np.concatenate(theta), ties)

    @property
    def parts(self) -> list[tuple[ParameterBlock, Array]]:
        """The blocks, each with its entries of theta."""
        ends = np.cumsum([block.size for block in self.blocks])[:-1]
        return list(zip(self.blocks, np.split(self.theta, ends), strict=True))

    def with_theta(self, theta: Array) -> NamedProcess:
        return replace(self, theta=theta)

    def untied(self) -> NamedProcess:
        """Return the same process with a length scale of its own for each input."""
        if self.ties is None:
            return self
        parts, tied = [], list(self.ties)
        for block, theta in self.parts:
            if block.name == "lengthscale":
                prior = block.prior
                if isinstance(prior, LogNormal):
                    prior = replace(prior, loc=np.broadcast_to(prior.loc, block.size)[tied])
                block, theta = replace(block, size=len(tied), prior=prior), theta[tied]
            parts.append((block, theta))
        return NamedProcess.of(self.leaf_kernel, parts)

    def without_priors(self) -> NamedProcess:
        """Return the same process without priors: what is learned is then what maximises the likelihood."""
        return replace(self, blocks=tuple(replace(block, prior=None) for block in self.blocks))

    def kernel_parameters(self, theta: Array | None = None) -> Array:
        return np.asarray(self._values(self.theta if theta is None else theta)[..., self._order])

    def pull_back(self, theta: Array, gradient: Array) -> Array:
        slopes = self._slopes(theta)
        by_value = np.zeros((*np.shape(gradient)[:-1], slopes.shape[-1]))
        if self.ties is None:
            by_value[..., self._order] = gradient
        else:
            np.add.at(by_value.T, self._order, gradient.T)
        return np.asarray(by_value * slopes)

    def noise_and_gradient(self, theta: Array) -> tuple[Array, Array]:
        gradient = np.zeros_like(theta)
        gradient[..., -1] = self._slopes(theta)[..., -1]
        return self._values(theta)[..., -1], gradient

    def log_prior(self, theta: Array) -> tuple[Array, Array]:
        loc, scale = self.normal_prior
        has = np.isfinite(scale)
        t, gradient = theta[..., has], np.zeros_like(theta)
        away = (t - loc[has]) / scale[has]
        # The density of the value exp(t) of a log-normal, not of t itself.
        log_normal = self._layout[0][has]
        density = -0.5 * np.square(away) - np.log(scale[has]) - 0.5 * LOG_2PI - log_normal * t
        gradient[..., has] = -away / scale[has] - log_normal
        return density.sum(axis=-1), gradient

    def has_prior(self, columns: Index) -> bool:
        return bool(np.isfinite(self.normal_prior[1][columns]).any())

    def rescaled(self, factor: float) -> NamedProcess:
        theta = self.theta.copy()
        theta[[name == "outputscale" for name in self.names]] += math.log(factor)
        block = self.blocks[-1]
        theta[-1] = block.to_theta(max(self.noise * factor, 1.001 * block.lower))[0]
        return self.with_theta(theta)

    @cached_property
    def _layout(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Array]:
        """By entry of theta whether its transform is exp, whether it is softplus, and the least value."""
        sizes = [block.size for block in self.blocks]
        transforms = np.repeat([block.transform for block in self.blocks], sizes)
        lower = np.repeat([block.lower for block in self.blocks], sizes)
        return transforms == "exp", transforms == "softplus", lower

    def _values(self, theta: Array) -> Array:
        """Values of the hyperparameters, in the order of theta."""
        exp, softplus, lower = self._layout
        values = np.array(theta, dtype=np.float64)
        with np.errstate(over="ignore"):  # an optimiser that went too far steps back
            values[..., exp] = np.exp(values[..., exp])
        values[..., softplus] = np.logaddexp(0.0, values[..., softplus])
        return values + lower

    def _slopes(self, theta: Array) -> Array:
        """Derivatives of the values by theta."""
        exp, softplus, _ = self._layout
        slopes = np.ones_like(theta)
        slopes[..., exp] = np.exp(theta[..., exp])
        slopes[..., softplus] = expit(theta[..., softplus])
        return slopes

    @cached_property
    def _order(self) -> Index:
        """Where in theta each kernel parameter stands."""
        starts = np.cumsum([0, *(block.size for block in self.blocks)])
        places = [np.arange(a, b) for a, b in pairwise(starts)]
        n_mean = sum(block.name == "mean" for block in self.blocks)
        if self.ties is not None:
            tied = np.array(self.ties, dtype=np.int64)
            pairs = zip(places, self.blocks, strict=True)
            places = [p[tied] if block.name == "lengthscale" else p for p, block in pairs]
        mean, rest, noise = places[:n_mean], places[n_mean:-1], places[-1]
        # Theta has the output scale of a term before its length scales, the kernel parameters have it after them.
        for k, block in enumerate(self.blocks[n_mean:-1]):
            if block.name == "outputscale":
                rest[k], rest[k + 1] = rest[k + 1], rest[k]
        return np.concatenate([*rest, *mean, noise])

    @cached_property
    def normal_prior(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the normal prior of each entry of theta itself; not finite where there is none."""
        locs, scales = [], []
        for block in self.blocks:
            none = block.prior is None
            locs.append(np.full(block.size, np.nan if none else block.prior.loc))  # type: ignore[union-attr]
            scales.append(np.full(block.size, np.inf if none else block.prior.scale))  # type: ignore[union-attr]
        return np.concatenate(locs), np.concatenate(scales)


def build_named_process(
    kernel: str | Kernel,
    mean: str,
    noise: ParameterBlock,
    start_noise: float,
    spread: Array,
    variance: float,
    periods: Array | None = None,
    ties: tuple[int, ...] | None = None,
) -> NamedProcess:
    """Build a process from names; see :func:`dsmgp.gp.process.build_process`.

    Parameters
    ----------
    kernel : str or Kernel
    mean : str
    noise : ParameterBlock
    start_noise : float
        Noise variance where learning starts.
    spread : ndarray of shape (n_dims,)
        Standard deviations of the inputs, by which length scales start.
    variance : float
        Where the output scale starts.
    periods : ndarray, optional
        Where periods start.
    ties : tuple of int, optional
        Equal for inputs that share a length scale.
    """
    n_dims = len(spread)
    if isinstance(kernel, Kernel) or "[" in kernel:
        ties = None  # it has a value for each input, or terms of some inputs only
    terms, of_kernel = _kernel_blocks(kernel, n_dims, spread, variance, periods, ties)
    sizes = {"zero": [], "constant": [1], "linear": [n_dims, 1]}[mean]
    of_mean = [(ParameterBlock("mean", n, "identity"), 0.0) for n in sizes]
    starts = [*of_mean, *of_kernel, (noise, start_noise)]
    parts = ((block, block.to_theta(value)) for block, value in starts)
    return NamedProcess.of(leaf_kernel(terms, mean), parts, ties)


def leaf_kernel(terms: tuple[Term, ...], mean: str) -> StationaryKernel | SumKernel:
    """Return the leaf kernel of some terms and a mean: the stationary one if it is one."""
    if len(terms) == 1 and terms[0].kind in STATIONARY:
        return StationaryKernel(terms[0].kind, terms[0].columns, mean)
    return SumKernel(terms, mean)


def _kernel_blocks(
    kernel: str | Kernel,
    n_dims: int,
    spread: Array,
    variance: float,
    periods: Array | None,
    ties: tuple[int, ...] | None,
) -> tuple[tuple[Term, ...], list[tuple[ParameterBlock, ArrayLike]]]:
    """Return the terms of a kernel, and its parameters in the order of theta, each with its starting value."""
    if isinstance(kernel, Kernel):
        if kernel.n_dims > n_dims or (
            kernel.n_dims < n_dims and any(term.columns is None for term in kernel.terms)
        ):
            raise InputError(
                f"the kernel cannot be evaluated on inputs with {n_dims} columns: it has {kernel.n_dims} length scales"
            )
        values = np.concatenate([term.parameters for term in kernel.terms])
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise InputError(f"expected a kernel with positive hyperparameters, got {kernel!r}")
        terms = tuple(term.term(n_dims) for term in kernel.terms)
    else:
        terms = tuple(Term.parse(part, n_dims) for part in kernel_parts(kernel))
    share = variance / len(terms)
    blocks: list[tuple[ParameterBlock, ArrayLike]] = []
    for k, term in enumerate(terms):
        given = kernel.terms[k] if isinstance(kernel, Kernel) else None
        scale = ParameterBlock("outputscale", 1, prior=LogNormal(np.array([math.log(share)]), 2.0))
        blocks.append((scale, share if given is None else given.outputscale))
        values_of = [None] * len(term.factors) if given is None else [given, *given.times]
        for name, of_factor in zip(term.factors, values_of, strict=True):
            columns = list(term.columns)
            start = None if periods is None else periods[columns]
            blocks += _factor_blocks(name, spread[columns], start, ties, of_factor)
    return terms, blocks


def _factor_blocks(
    name: str,
    spread: Array,
    periods: Array | None,
    ties: tuple[int, ...] | None,
    given: KernelTerm | None,
) -> list[tuple[ParameterBlock, ArrayLike]]:
    """Return the parameters of a kernel besides its output scale, each with its starting value."""
    n_dims = n_scales = len(spread)
    if ties is not None:
        n_scales = max(ties) + 1
        # Levels of one category have the same unit.
        spread = np.array([spread[list(ties).index(k)] for k in range(n_scales)])
    # Length scales are learned best on a logarithmic scale. Distances grow with sqrt(n_dims), and so do plausible
    # length scales (Hvarfner et al. 2024).
    middle = math.sqrt(2.0) + 0.5 * math.log(n_scales) + np.log(spread)
    lengthscale = ParameterBlock("lengthscale", n_scales, prior=LogNormal(middle, math.sqrt(3.0)))
    start = 0.5 * math.sqrt(n_scales) * spread
    blocks: list[tuple[ParameterBlock, ArrayLike]] = [
        (lengthscale, start if given is None else given.lengthscale)
    ]
    if name == "rq":
        alpha = math.log(2.0) if given is None or given.alpha is None else given.alpha
        blocks.append((ParameterBlock("alpha", 1, "softplus"), alpha))
    elif name == "periodic":
        period: ArrayLike = 1.0 if periods is None else periods
        if given is not None and given.period is not None:
            period = given.period
        prior = LogNormal(np.zeros(n_dims), 2.0)
        blocks.append((ParameterBlock("period_length", n_dims, prior=prior), period))
    return blocks
