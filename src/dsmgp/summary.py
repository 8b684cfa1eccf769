"""A fitted model in words and numbers, in the user's units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dsmgp.breaking import BreakingModel
from dsmgp.conditioned import Conditioned
from dsmgp.model import Model
from dsmgp.process import Process
from dsmgp.stationary import Stationary
from dsmgp.thetas import parameter_names
from dsmgp.tree import depth, log_n_induced_trees, n_induced_trees

__all__ = ["called", "describe", "summarise"]

Array = NDArray[np.float64]


def summarise(
    model: Model,
    names: Sequence[str],
    loo_scores: tuple[float, float],
    kernel_scores: dict[str, float] | None,
    target_names: Sequence[str] | None = None,
) -> str:
    """The text of :meth:`DSMGPRegressor.summary`."""
    experts = model.experts.experts
    n_rows, n_outputs = model.experts.n_rows, experts.n_outputs
    outputs = called(target_names, n_outputs)
    assert isinstance(model.experts, Conditioned), "not settled"
    sizes = model.experts.leaf_sizes
    lines = [
        f"Deep structured mixture of GPs: {n_rows} rows, {len(names)} input{'s' * (len(names) > 1)}, "
        f"{n_outputs} output{'s' * (n_outputs > 1)}, {model.weights} weights",
        "",
        f"tree            {len(sizes)} leaves of {sizes.min()} to {sizes.max()} rows "
        f"(median {np.median(sizes):.0f}), {depth(model.tree)} layer(s) of sum nodes",
        f"induced trees   {_large(model)}, of which {model.posterior.n_effective_trees:.3g} "
        "carry the posterior",
        f"log evidence    {model.log_evidence:.6g} ({model.log_evidence / n_rows:.4g} per row)",
        f"leave-one-out   NLPD {loo_scores[0]:.4g}, at new inputs {loo_scores[1]:.4g}",
    ]
    plan = model.experts.sharing
    if plan is not None:
        lines.append(
            f"shared factors  {len(plan.flops)} of {len(sizes)} leaves factorised, {plan.saving:.0%} of the work saved"
        )
    if model.gate is not None:
        gate = model.gate
        shapes = zip(gate.shape_weights, gate.shape_variances, strict=True)
        lines.append(
            f"gate            variance^{0 - gate.variance_exponent:.3g} scale^{0 - gate.scale_exponent:.3g}, "
            "leaf variances times " + ", ".join(f"{c:.3g} ({w:.0%})" for w, c in shapes)
        )
    if kernel_scores:
        ranked = sorted(kernel_scores.items(), key=lambda item: item[1])
        lines.append(
            "kernels tried   " + ", ".join(f"{name} {score:.4g}" for name, score in ranked)
        )
    if len(model.families) > 1:
        lines.append("kernels used    " + ", ".join(_families(model, sizes)) + "; the first:")
    rotated = not model.outputs.diagonal
    units = [f"component {k}" for k in range(n_outputs)] if rotated else outputs
    lines += _tuned(model, rotated, units)
    for output, process in enumerate(model.processes):
        title = "" if n_outputs == 1 else f" of {units[output]}"
        lines += ["", f"kernel{title}", *describe(model, process, output, names, rotated)]
    if rotated:
        lines += [
            "",
            "Outputs are correlated and were turned into uncorrelated components (rotated or regressed on one another):",
        ]
        lines += [
            f"  {outputs[k]} = {model.outputs.centre[k]:.4g}"
            + "".join(f" {w:+.4g} * component {j}" for j, w in enumerate(row))
            for k, row in enumerate(model.outputs.loading)
        ]
    return "\n".join(lines)


def called(target_names: Sequence[str] | None, n_outputs: int) -> list[str]:
    """What outputs are called: by their names where these are known, else by their numbers."""
    return list(target_names or [f"output {k}" for k in range(n_outputs)])


def _tuned(model: Model, rotated: bool, units: Sequence[str]) -> Iterator[str]:
    """Which hyperparameters differ from leaf to leaf, and how much the noise does."""
    for output, theta in enumerate(model.thetas or []):
        processes = [family.processes[output] for family in model.families]
        shared = np.stack([process.theta.numpy() for process in processes])[model.family]
        moved = (theta != shared).any(axis=0)
        names = dict.fromkeys(np.array(parameter_names(processes[0]))[moved].tolist())
        unit = 1.0 if rotated else abs(model.outputs.loading[output, output])
        std = np.sqrt(model.experts.noise[:, output]) * unit
        title = "fine-tuned      " + (f"{units[output]}: " if len(units) > 1 else "")
        yield (
            f"{title}{', '.join(names) or 'nothing moved'}; noise std of the leaves {std.min():.4g} to "
            f"{std.max():.4g} (median {np.median(std):.4g}). Below, what all began with:"
        )


def _families(model: Model, sizes: NDArray[np.int64]) -> Iterator[str]:
    """Which leaves have which kernel, each with a theta of its own."""
    for number, family in enumerate(model.families):
        own = sizes[model.family == number]
        yield f"{family.kernel} in {len(own)} leaves of {own.min()} to {own.max()} rows"


def _large(model: Model) -> str:
    log_count = log_n_induced_trees(model.tree)
    if log_count < 40:
        return f"{n_induced_trees(model.tree):,}"
    return f"about 10^{log_count / math.log(10):.1f}"


def describe(
    model: Model | BreakingModel, process: Process, output: int, names: Sequence[str], rotated: bool
) -> list[str]:
    """Hyperparameters of one process; scales of a rotated component stay in its own units."""
    unit = 1.0 if rotated else model.outputs.loading[output, output]
    noise = f"  noise           std {math.sqrt(process.noise) * abs(unit):.4g}"
    law = process.law(len(names))
    if not isinstance(law, Stationary):
        parameters = [
            f"  {name} = {np.array2string(value, precision=4)}"
            for name, value in _parameters(process)
        ]
        return [
            f"  {type(process.kernel).__name__}, in the units the experts see:",
            *parameters,
            noise,
        ]
    natural = process.natural(law).detach().numpy()
    n = len(law.columns)
    lines = [
        f"  {law.kind}, {_mean_in_words(model, natural, law, unit, names)}",
        f"  signal          std {math.sqrt(natural[n]) * abs(unit):.4g}",
        noise,
        f"  {'input':<24} {'length-scale':>14} {'relevance':>10}",
    ]
    if law.kind == "rq":
        lines.insert(1, f"  shape           alpha {natural[n + 1]:.4g}")
    relevance = 1.0 / natural[:n]  # per standard deviation of the input
    for k in np.argsort(-relevance):
        column = law.columns[k]
        scale = natural[k] * model.inputs.scale[column]
        lines.append(
            f"  {names[column]!s:<24.24} {scale:>14.4g} {relevance[k] / relevance.max():>10.3f}"
        )
    return lines


def _mean_in_words(
    model: Model | BreakingModel, natural: Array, law: Stationary, unit: float, names: Sequence[str]
) -> str:
    """The prior mean in the user's units: y - centre as a function of x."""
    parameters = natural[len(law.columns) + 1 + (law.kind == "rq") : -1] * unit
    if law.mean_kind == "zero":
        return "zero mean"
    if law.mean_kind == "constant":
        return f"constant mean {parameters[0]:.4g} above the average"
    slopes = parameters[:-1] / model.inputs.scale
    named = ", ".join(f"{s:+.3g} per {name}" for s, name in zip(slopes, names, strict=True))
    return f"linear mean ({named})"


def _parameters(process: Process) -> Iterator[tuple[str, Array]]:
    """Names and values of a kernel's parameters, as constrained."""
    for name, raw, constraint in process.kernel.named_parameters_and_constraints():
        value = raw if constraint is None else constraint.transform(raw)
        yield name.replace("raw_", ""), value.detach().numpy()
