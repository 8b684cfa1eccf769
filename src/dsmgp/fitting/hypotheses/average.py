"""Averaging over hyperparameters: a sum node over kernels, means and draws of their hyperparameters, weighted by prior times evidence.

A hypothesis is a kernel and a mean with a value of theta, its hyperparameters. For each kernel and mean, values are drawn around the
optimum (:mod:`dsmgp.fitting.hypotheses.laplace`). A draw stands for a part of the space of theta, whose prior mass is
its prior density over the density of the draws, divided by their number (importance sampling); with these masses the posterior over
hypotheses is exact.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.data.input_schema import InputSchema
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.experts.interface import LeafGPs
from dsmgp.experts.loo import normal_log_density
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.fit import fit_rows
from dsmgp.fitting.hypotheses.held_out import conditioned, scaled_data
from dsmgp.fitting.hypotheses.laplace import laplace
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.optimize import (
    TOLERANCE,
    Objective,
    Vector,
    evidence_objective,
    maximise,
)
from dsmgp.fitting.rows.leaf_setup import LeafFamilies
from dsmgp.fitting.rows.row_source import InMemoryRows
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.state import FittedState
from dsmgp.gp.named_process import LogNormal, NamedProcess, Normal
from dsmgp.gp.process import START_NOISE, Family
from dsmgp.mixture.model import Model
from dsmgp.mixture.weighting import LOOSample
from dsmgp.mixture.weights.stacking import Stacking
from dsmgp.progress import span, stopping
from dsmgp.tree.nodes import Node

__all__ = ["average_hypotheses"]

logger = logging.getLogger("dsmgp")

KERNELS = ("rbf", "matern12", "matern32", "matern52")
# Draws of hyperparameters of all kernels and means together.
N_DRAWS = 64
# Of the posterior; the lightest hypotheses, which together have less, are dropped.
LEAST_MASS = 0.01
# Priors of what has none while one value is learned. Inputs and outputs are standardised.
PRIORS: dict[str, LogNormal | Normal] = {
    "noise": LogNormal(np.log([START_NOISE]), 3.0),
    "mean": Normal(np.zeros(1), np.ones(1)),
}


@dataclass(frozen=True, eq=False)
class _Draws:
    """Draws of the hyperparameters of one kernel and mean.

    Attributes
    ----------
    state : FittedState
        The fit around whose hyperparameters they were drawn.
    name : str
    thetas : ndarray of shape (n_draws, n_parameters)
    log_prior : ndarray of shape (n_draws,)
        Log prior masses, of sum about one.
    log_evidence : ndarray of shape (n_draws,)
        In the units of the leaf GPs, in which all kernels and means see the same outputs.
    """

    state: FittedState
    name: str
    thetas: Array
    log_prior: Array
    log_evidence: Array


def average_hypotheses(
    rows: TrainingRows, schema: InputSchema, config: FitConfig, rng: np.random.Generator
) -> FittedState:
    """Fit every kernel and mean, and average over their hyperparameters.

    Returns
    -------
    FittedState
        That of the heaviest hypothesis, with the others as alternatives. A fit that is asked to stop returns the first optimum alone.
    """
    if rows.Y.shape[1] > 1:
        raise InputError(
            f"hypotheses='average' is for one output, got {rows.Y.shape[1]}; fit one model per output"
        )
    config = replace(config, executor=LocalExecutor(), device="cpu", hypotheses=None)
    configs = _configurations(config, schema)
    seed = int(rng.integers(2**63))
    found: list[_Draws] = []
    for k, each in enumerate(configs):
        # Kernels and means are compared on the same random trees.
        own = np.random.default_rng(seed)
        shares = k / len(configs), (k + 1) / len(configs)
        with span(*shares, "averaging hypotheses", f"averaging: {_name(each)}"):
            state = fit_rows(rows, schema, FitContext(each, own))
            if stopping():
                return found[0].state if found else state
            found.append(_draws(state, each, max(1, N_DRAWS // len(configs)), own))
    return _averaged(found, config)


def _configurations(config: FitConfig, schema: InputSchema) -> list[FitConfig]:
    """Return a configuration for each kernel and mean that the user has left open."""
    kernels = KERNELS if config.kernel == "auto" else (config.kernel,)
    # Where inputs are effects of levels, a linear mean could tell a row's own output from them.
    has_effects = any(column.effects for column in schema.columns.columns)
    is_open = config.mean_is_open and not has_effects
    means = ("zero", "linear") if is_open else (config.mean,)
    return [
        replace(config, kernel=kernel, mean=mean, mean_is_open=False)
        for mean in means
        for kernel in kernels
    ]


def _name(config: FitConfig) -> str:
    return f"{config.kernel}, {config.mean} mean"


def _draws(state: FittedState, config: FitConfig, n_draws: int, rng: np.random.Generator) -> _Draws:
    """Find the optimum of the posterior density of theta on the whole tree, and draw around it."""
    model = state.mixture
    process = _with_all_priors(model.processes[0])
    loc, scale = process.normal_prior
    gps = _leaf_gps(state, config)
    log_likelihood = _log_likelihood(model.tree, gps, process)

    def objective(theta: Vector) -> tuple[float, Vector]:
        value, gradient = log_likelihood(theta)
        away = (theta - loc) / scale
        return value - 0.5 * float(away @ away), gradient - away / scale

    assert config.optimizer is not None
    best = maximise(
        objective, process.theta, len(state.rows), config.optimizer, config.max_iter, TOLERANCE
    )
    around = laplace(objective, best.theta, scale)
    thetas = around.sample(n_draws, rng)
    log_prior = (
        normal_log_density(thetas - loc, np.square(scale)).sum(axis=1)
        - around.log_density(thetas)
        - np.log(n_draws)
    )
    log_evidence = np.array([log_likelihood(theta)[0] for theta in thetas])
    search = replace(
        state.search,
        n_evaluations=state.search.n_evaluations + best.n_evaluations + 2 * len(loc) + n_draws,
    )
    return _Draws(replace(state, search=search), _name(config), thetas, log_prior, log_evidence)


def _with_all_priors(process: object) -> NamedProcess:
    """Return the process with a prior on every hyperparameter: without one it has no average."""
    assert isinstance(process, NamedProcess)  # see check_parameters
    blocks = tuple(
        replace(block, prior=PRIORS.get(block.name)) if block.prior is None else block
        for block in process.blocks
    )
    without = sorted({block.name for block in blocks if block.prior is None})
    if without:
        raise InputError(
            f"hypotheses='average' needs a prior on every hyperparameter, but the kernel has none on its {without[0]!r}; use another kernel"
        )
    return replace(process, blocks=blocks)


def _leaf_gps(state: FittedState, config: FitConfig) -> LeafGPs:
    """Set up the leaves of a fit."""
    model = state.mixture
    data = scaled_data(state, model.outputs, config)
    tree = LeafFamilies(model.tree, model.families, model.family)
    return InMemoryRows(data, config).set_up(tree, model.outputs)


def _log_likelihood(tree: Node, gps: LeafGPs, process: NamedProcess) -> Objective:
    """Return the log evidence of a tree, with gradient, as a function of theta."""
    return evidence_objective(tree, gps, [process.without_priors()], [0])


def _averaged(found: list[_Draws], config: FitConfig) -> FittedState:
    """Return the state of the hypotheses that have nearly all of the posterior."""
    log_prior = np.concatenate([draws.log_prior for draws in found]) - np.log(len(found))
    log_weights = log_prior + np.concatenate([draws.log_evidence for draws in found])
    weights = np.exp(log_weights - logsumexp(log_weights))
    order = np.argsort(-weights, kind="stable")
    kept = order[: np.searchsorted(np.cumsum(weights[order]), 1.0 - LEAST_MASS) + 1].tolist()
    pairs = [(draws, theta) for draws in found for theta in draws.thetas]
    chosen = [pairs[k] for k in kept]
    fits = [_conditioned(draws, theta, config) for draws, theta in chosen]
    names = tuple(draws.name for draws, _ in chosen)
    stacking = Stacking(names, weights[kept], (np.nan, np.nan), log_prior[kept])
    stacking, _ = stacking.updated([state.model.log_evidence for state, _ in fits])
    scores = _scores([loo for _, loo in fits], stacking.weights, found[0].state.rows.weights)
    logger.info("averaging over %d of %d draws of hyperparameters", len(kept), len(pairs))
    (heaviest, _), *others = fits
    n_evaluations = sum(draws.state.search.n_evaluations for draws in found)
    return replace(
        heaviest,
        search=replace(heaviest.search, n_evaluations=n_evaluations),
        alternatives=tuple(state for state, _ in others),
        stacking=replace(stacking, scores=scores),
    )


def _conditioned(draws: _Draws, theta: Array, config: FitConfig) -> tuple[FittedState, Array]:
    """Condition the leaves under a draw; return the state, and its log densities of rows left out (see :func:`_left_out`)."""
    state = draws.state
    model = state.mixture
    families = [Family(model.families[0].kernel, (model.processes[0].with_theta(theta),))]
    drawn = conditioned(model, scaled_data(state, model.outputs, config), families, config)
    left_out = _left_out(drawn, state)
    scores = -np.average(left_out[1], axis=1, weights=state.rows.weights)
    drawn.leaf_posterior.drop_loo()
    return replace(state, model=drawn, scores=(float(scores[0]), float(scores[1]))), left_out


def _left_out(model: Model, state: FittedState) -> Array:
    """Return log densities of rows left out alone and with their duplicates, (2, 2, n_rows).

    The first are those of all that is left out, by which posterior weights have to be divided; the second those of the row itself.
    """
    loo = model.leaf_posterior.leave_one_out()
    sample = LOOSample(np.empty(0, dtype=np.int64), np.arange(len(state.rows)), state.missing)
    reach = model.posterior.log_responsibilities
    densities = np.empty((2, 2, len(state.rows)))
    for k, grouped in enumerate((False, True)):
        log_path = loo.components(sample.scored, grouped).of_leaves(reach, -np.inf)
        densities[0, k] = -logsumexp(log_path - loo.log_density(sample.scored, grouped), axis=1)
        predicted = model.loo_distribution(loo, sample.scored, grouped, sample.missing)
        densities[1, k] = predicted.logpdf(state.rows.Y)[:, 0]
    return densities


def _scores(
    left_out: list[Array], weights: Array, row_weights: Array | None
) -> tuple[float, float]:
    """Return the mean negative log densities of rows under the average, with the posterior that has not seen them."""
    of_removed, of_row = np.stack(left_out, axis=1)  # (n_hypotheses, 2, n_rows) each
    without = np.log(weights)[:, None, None] - of_removed
    mixed = logsumexp(without + of_row, axis=0) - logsumexp(without, axis=0)
    alone, at_new_inputs = -np.average(mixed, axis=1, weights=row_weights)
    return float(alone), float(at_new_inputs)
