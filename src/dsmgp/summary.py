"""The text summary of a fitted model, in the user's units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.data.columns.folds import N_FOLDS
from dsmgp.data.input_schema import InputSchema
from dsmgp.fitting.state import FittedState
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.gp.process import Process
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.fitted_model import FittedModel, supports
from dsmgp.mixture.weights.stacking import Stacking

__all__ = ["summarise"]

# Directions of a metric, inputs of a direction, and names in a list, that are shown at most; inputs with a smaller share of a
# direction than this are left out.
MOST_DIRECTIONS, MOST_LOADINGS, MOST_NAMES, LEAST_LOADING = 5, 5, 8, 0.15


def summarise(state: FittedState) -> str:
    """Return the text of :meth:`DSMGPRegressor.summary`; all leaves must be conditioned on the present rows."""
    model, schema = state.model, state.schema
    n_outputs, rotated = model.outputs.n_outputs, not model.outputs.diagonal
    outputs = list(schema.target_names or (f"output {k}" for k in range(n_outputs)))
    components = [f"component {k}" for k in range(n_outputs)] if rotated else outputs
    description = model.description(schema.input_names, components)
    lines = [
        f"{description.title}: {model.n_rows} rows, {_plural(schema.n_features, 'input')}, "
        f"{_plural(n_outputs, 'output')}, {model.weights} weights",
        "",
        *_column_lines(schema),
        *description.facts,
        *_warp_lines(model.outputs, outputs),
    ]
    if supports(model, "loo_score_"):
        assert state.scores is not None, "rows have been added or removed"
        alone, at_new_inputs = state.scores
        if state.stacking is None:
            lines.append(f"leave-one-out   NLPD {alone:.4g}, at new inputs {at_new_inputs:.4g}")
        else:
            lines += _hypothesis_lines(state, state.stacking)
    if state.search.kernel_scores:
        ranked = sorted(state.search.kernel_scores.items(), key=lambda item: item[1])
        scores = ", ".join(f"{name} {score:.4g}" for name, score in ranked)
        lines.append(f"kernels tried   {scores}{description.kernel_score}")
    lines += [*state.search.notes, *_coordinate_lines(state), *description.kernel_notes]
    for output, process in enumerate(model.processes):
        title = "" if n_outputs == 1 else f" of {components[output]}"
        warped = model.outputs.is_warped(output) and not rotated
        note = ", of the output before its warp and standardised" if warped else ""
        lines += ["", f"kernel{title}{note}", *_kernel_lines(state, process, output)]
    if rotated:
        lines += _component_lines(model.outputs, outputs)
    return "\n".join(lines)


def _hypothesis_lines(state: FittedState, stacking: Stacking) -> list[str]:
    """List the hypotheses with their weights, and the scores of their mixture."""
    if stacking.log_prior is not None:
        return _averaged_lines(state, stacking)
    alone, at_new_inputs = stacking.scores
    described = zip(stacking.weights.tolist(), stacking.names, strict=True)
    return [
        f"cross-validated NLPD {alone:.4g}, at new inputs {at_new_inputs:.4g} (leave-one-out, hyperparameters learned without the fold of the row, {N_FOLDS} folds)",
        "hypotheses      weighed by stacking on these folds"
        + ("; the first is described here:" * bool(state.alternatives)),
        *(f"  {weight:<13.2f} {name}" for weight, name in described),
    ]


def _averaged_lines(state: FittedState, stacking: Stacking) -> list[str]:
    """List the kernels and means of averaged hypotheses with their posterior probabilities, and the scores of the average."""
    alone, at_new_inputs = stacking.scores
    totals: dict[str, list[float]] = {}
    for weight, name in zip(stacking.weights.tolist(), stacking.names, strict=True):
        totals.setdefault(name, []).append(weight)
    ranked = sorted(totals.items(), key=lambda item: -sum(item[1]))
    return [
        f"leave-one-out   NLPD {alone:.4g}, at new inputs {at_new_inputs:.4g} (averaged over hyperparameters, with their posterior given the other rows)",
        f"hypotheses      weighed by prior times evidence, whose average has the logarithm {state.log_evidence:.6g}"
        + ("; the heaviest is described here:" * bool(state.alternatives)),
        *(
            f"  {sum(weights):<13.2f} {name} ({_plural(len(weights), 'draw')} of hyperparameters)"
            for name, weights in ranked
        ),
    ]


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n > 1)}"


def _column_lines(schema: InputSchema) -> list[str]:
    """Count what became of the columns of the training table, if they are not all complete numbers; ``remarks_`` has each of them."""
    columns = schema.columns.columns
    categories = [column for column in columns if column.kind == "category"]
    n_levels = [len(column.levels) for column in categories if column.effects]
    n_missing = sum(column.had_missing or None in column.levels for column in columns)
    counts = []
    if categories:
        most = (
            f"{n_levels[0] if len(n_levels) == 1 else f'up to {max(n_levels)}'} levels"
            if n_levels
            else ""
        )
        which = "" if len(categories) == len(n_levels) == 1 else f"{len(n_levels)} with "
        effects = f" ({which}{most} by their effects)" if n_levels else ""
        counts.append(f"{len(categories)} categor{'y' if len(categories) == 1 else 'ies'}{effects}")
    if n_dates := sum(column.kind == "date" for column in columns):
        counts.append(_plural(n_dates, "date"))
    if n_missing:
        counts.append(f"{n_missing} with missing values")
    if n_left_out := schema.n_columns - len(columns):
        counts.append(f"{n_left_out} left out")
    return [f"columns         {', '.join(counts)}"] if counts else []


def _warp_lines(scaling: OutputScaling, outputs: Sequence[str]) -> list[str]:
    """Describe the warps of the outputs, if there are any."""
    return [
        f"output warp     {'' if len(outputs) == 1 else f'{name}: '}"
        + ("none" if warp is None else warp.description)
        for name, warp in zip(outputs[: len(scaling.warps)], scaling.warps, strict=True)
    ]


def _component_lines(scaling: OutputScaling, outputs: Sequence[str]) -> list[str]:
    """Describe how correlated outputs are composed of uncorrelated components."""
    return [
        "",
        "Outputs are correlated and were turned into uncorrelated components (rotated or regressed on one another):",
        *(
            f"  {outputs[k]}{' before its warp' * scaling.is_warped(k)} = {scaling.centre[k]:.4g}"
            + "".join(f" {w:+.4g} * component {j}" for j, w in enumerate(row))
            for k, row in enumerate(scaling.loading)
        ),
    ]


def _coordinate_lines(state: FittedState) -> list[str]:
    """Describe warps and metric of the inputs, and what the choice of coordinates gained."""
    coordinates, names = state.model.inputs.coordinates, state.schema.input_names
    lines = []
    if coordinates is not None:
        warped = [
            names[column]
            for column, warp in zip(coordinates.columns, coordinates.warps, strict=True)
            if warp is not None
        ]
        if warped:
            lines.append(f"input warp      normal scores of {_listed(warped)}")
        if coordinates.metric is not None:
            lines.append("metric          trees cut along, and kernels measure distances along:")
            lines += _direction_lines(state)
        if coordinates.network is not None:
            layers = " -> ".join(map(str, coordinates.network.widths))
            lines.append(f"network         {layers} units; its outputs are further coordinates")
        if coordinates.trees is not None:
            lines.append("boosted trees   their predictions are a further coordinate")
    if state.search.gains:
        gains = (f"{step} {gain:.3g}" for step, gain in state.search.gains.items())
        lines.append(f"gains           {', '.join(gains)} (nats per row, leave-one-out)")
    return lines


def _direction_lines(state: FittedState) -> list[str]:
    """Describe the directions of a metric, the most relevant first, by the inputs that move together in each."""
    inputs = state.model.inputs
    coordinates = inputs.coordinates
    assert coordinates is not None
    assert coordinates.metric is not None
    names = coordinates.names(state.schema.input_names)
    spread = coordinates.features(state.rows.X).std(axis=0)
    n_directions = coordinates.n_linear
    # per standard deviations
    loadings = coordinates.metric * spread[:, None] / inputs.scale[:n_directions]
    order = np.arange(n_directions)
    leaf_kernel = state.model.processes[0].leaf_kernel
    if isinstance(leaf_kernel, StationaryKernel):
        order = np.argsort(state.model.processes[0].kernel_parameters()[: len(order)])
    lines = []
    for place, k in enumerate(order[:MOST_DIRECTIONS].tolist()):
        most = np.argsort(-np.abs(loadings[:, k]))[:MOST_LOADINGS]
        most = most[np.abs(loadings[most, k]) > LEAST_LOADING * np.abs(loadings[most[0], k])]
        terms = " ".join(f"{loadings[j, k]:+.2f} {names[j]}" for j in most.tolist())
        lines.append(f"  direction {place + 1:<5} {terms}")
    return lines


def _listed(names: Sequence[str]) -> str:
    """Join names, the first few of many."""
    shown = ", ".join(dict.fromkeys(names[:MOST_NAMES]))
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def _kernel_lines(state: FittedState, process: Process, output: int) -> list[str]:
    """List the hyperparameters of one GP; those of a rotated component, or of a warped output, are in the experts' units."""
    model, names = state.model, state.schema.input_names
    unit = model.outputs.user_unit(output)
    noise = f"  noise           std {math.sqrt(process.noise) * abs(unit):.4g}"
    leaf_kernel = process.leaf_kernel
    if not isinstance(leaf_kernel, StationaryKernel):
        return [*_other_kernel(process.kernel), noise]
    kernel_parameters = process.kernel_parameters()
    n = len(leaf_kernel.columns)
    lines = [
        f"  {leaf_kernel.kind}, {_mean_in_words(model, kernel_parameters, leaf_kernel, unit, names)}",
        f"  signal          std {math.sqrt(kernel_parameters[n]) * abs(unit):.4g}",
        noise,
        f"  {'input':<24} {'length scale':>14} {'relevance':>10}",
    ]
    if leaf_kernel.kind == "rq":
        lines.insert(1, f"  shape           alpha {kernel_parameters[n + 1]:.4g}")
    columns, scales, relevance = _length_scales(state, leaf_kernel, kernel_parameters[:n])
    # A column may have several inputs, and a kernel may use only some of the inputs.
    place = {column: k for k, column in enumerate(columns)}
    groups = [
        (name, [place[k] for k in inputs.tolist() if k in place])
        for name, inputs in state.schema.groups
    ]
    used = [(name, inputs) for name, inputs in groups if inputs]
    with np.errstate(over="ignore", invalid="ignore"):  # inputs of any range have a summary
        totals = np.array([np.linalg.norm(relevance[inputs]) for _, inputs in used])
        shares = totals / totals.max()
    for k in np.argsort(-totals).tolist():
        name, inputs = used[k]
        scale = f"{scales[inputs[0]]:.4g}" if len(inputs) == 1 else f"{len(inputs)} inputs"
        lines.append(f"  {name:<24.24} {scale:>14} {shares[k]:>10.3f}")
    return lines


def _length_scales(
    state: FittedState, leaf_kernel: StationaryKernel, lengthscale: Array
) -> tuple[Sequence[int], Array, Array]:
    """Return inputs, their length scales in the user's units, and their relevance per standard deviation.

    Where inputs are warped or mapped, length scales are those at the median of the training rows.
    """
    inputs, columns = state.model.inputs, list(leaf_kernel.columns)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if inputs.coordinates is None:
            return columns, lengthscale * inputs.scale[columns], 1.0 / lengthscale
        rates = np.zeros(inputs.n_coordinates)
        rates[columns] = 1.0 / (lengthscale * inputs.scale[columns])
        coordinates, X = inputs.coordinates, state.rows.X
        at_median = coordinates.slopes(np.median(X, axis=0))
        spread = coordinates.features(X).std(axis=0)
        scales = 1.0 / coordinates.input_rates(rates, at_median)
        relevance = coordinates.input_rates(rates, spread, X.std(axis=0))
        return range(coordinates.n_inputs), scales, relevance


def _mean_in_words(
    model: FittedModel,
    kernel_parameters: Array,
    leaf_kernel: StationaryKernel,
    unit: float,
    names: Sequence[str],
) -> str:
    """Describe the prior mean in the user's units: y - centre as a function of x."""
    parameters = (
        kernel_parameters[len(leaf_kernel.columns) + 1 + (leaf_kernel.kind == "rq") : -1] * unit
    )
    if leaf_kernel.mean_kind == "zero":
        return "zero mean"
    if leaf_kernel.mean_kind == "constant":
        return f"constant mean {parameters[0]:.4g} above the average"
    if model.inputs.coordinates is not None:
        return "linear mean in the coordinates"
    slopes = parameters[:-1] / model.inputs.scale
    named = ", ".join(f"{s:+.3g} per {name}" for s, name in zip(slopes, names, strict=True))
    return f"linear mean ({named})"


def _other_kernel(kernel: Any) -> list[str]:
    """List the hyperparameters of a sum of kernels, or of a GPyTorch kernel, which has no unit of its own for an input."""
    if isinstance(kernel, Kernel):
        return [
            f"  {kernel.name}, in the units the experts see:",
            *(f"  {term}" for term in kernel.terms),
        ]
    lines = [f"  {type(kernel).__name__}, in the units the experts see:"]
    for name, raw, constraint in kernel.named_parameters_and_constraints():
        value = (raw if constraint is None else constraint.transform(raw)).detach().numpy()
        lines.append(f"  {name.replace('raw_', '')} = {np.array2string(value, precision=4)}")
    return lines
