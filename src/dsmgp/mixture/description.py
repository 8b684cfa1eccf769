"""The part of a summary that describes a fitted mixture: tree, evidence, gate, and how the leaves' kernels differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp.mixture.fitted_mixture import FittedMixture
from dsmgp.mixture.fitted_model import Description
from dsmgp.tree.nodes import depth, log_n_induced_trees, n_induced_trees

__all__ = ["describe_mixture"]


def describe_mixture(model: FittedMixture, output_names: Sequence[str]) -> Description:
    """Describe a mixture whose leaves are all conditioned (see :func:`dsmgp.fitting.state.FittedState.conditioned`)."""
    sizes = model.leaf_posterior.leaf_sizes
    n_effective = model.posterior.n_effective_trees
    facts = [
        f"tree            {len(sizes)} leaves of {sizes.min()} to {sizes.max()} rows "
        f"(median {np.median(sizes):.0f}), {depth(model.tree)} layer(s) of sum nodes",
        f"induced trees   {_tree_count(model)}, of which {n_effective:.3g} carry the posterior",
        f"log evidence    {model.log_evidence:.6g} ({model.log_evidence / (model.n_observations or model.n_rows):.4g} per row)",
    ]
    if (plan := model.leaf_posterior.sharing) is not None:
        facts.append(
            f"shared factors  {len(plan.flops)} of {len(sizes)} leaves factorised, {plan.saving:.0%} of the work saved"
        )
    if (gate := model.gate) is not None:
        shapes = zip(gate.shape_weights, gate.shape_variances, strict=True)
        facts.append(
            f"gate            variance^{0 - gate.variance_exponent:.3g} scale^{0 - gate.scale_exponent:.3g}, "
            "leaf variances times " + ", ".join(f"{c:.3g} ({w:.0%})" for w, c in shapes)
        )
    notes = [
        *_kernel_notes(model, sizes),
        *_family_notes(model, sizes),
        *_tuning_notes(model, output_names),
    ]
    return Description("Deep structured mixture of GPs", facts, notes)


def _tree_count(model: FittedMixture) -> str:
    log_count = log_n_induced_trees(model.tree)
    if log_count < 40:
        return f"{n_induced_trees(model.tree):,}"
    return f"about 10^{log_count / math.log(10):.1f}"


def _family_notes(model: FittedMixture, sizes: Index) -> Iterator[str]:
    """List which leaves have which kernel, if they differ."""
    if len(model.families) > 1:
        parts = []
        for number, family in enumerate(model.families):
            inside = sizes[model.family == number]
            parts.append(
                f"{family.kernel} in {len(inside)} leaves of {inside.min()} to {inside.max()} rows"
            )
        yield "kernels used    " + ", ".join(parts) + "; the first:"


def _kernel_notes(model: FittedMixture, sizes: Index) -> Iterator[str]:
    """Average the posterior over kernels, if there are sums over them, over the training rows."""
    if sums := model.kernel_sums:
        weights = np.exp(model.posterior.log_responsibilities) * sizes
        shares = np.bincount(model.family, weights, len(model.families)) / weights.sum()
        pairs = zip(model.families, shares.tolist(), strict=True)
        shown = ", ".join(f"{family.kernel} {share:.3g}" for family, share in pairs)
        yield f"kernel posterior {shown}, over all rows; kernel_posterior_ has all {len(sums)} regions"


def _tuning_notes(model: FittedMixture, output_names: Sequence[str]) -> Iterator[str]:
    """List which hyperparameters were fine-tuned leaf by leaf, and how the noise varies."""
    for output, theta in enumerate(model.thetas or []):
        processes = [family.processes[output] for family in model.families]
        shared = np.stack([process.theta for process in processes])[model.family]
        moved = (theta != shared).any(axis=0)
        names = dict.fromkeys(np.array(processes[0].names)[moved].tolist())
        unit = abs(model.outputs.user_unit(output))
        std = np.sqrt(model.leaf_posterior.noise[:, output]) * unit
        title = "fine-tuned      " + (f"{output_names[output]}: " if len(output_names) > 1 else "")
        yield (
            f"{title}{', '.join(names) or 'nothing moved'}; noise std of the leaves {std.min():.4g} to "
            f"{std.max():.4g} (median {np.median(std):.4g}). Below, the common values before that:"
        )
