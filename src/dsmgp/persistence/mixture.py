"""How a mixture over partitions is stored: tree, families of leaves, gate, and its leaves.

Of the leaves only their log evidence is stored, as they can be conditioned again; factors that earlier versions wrote are not read. For a
model fitted to a dataset, the rows lie in files beside the model file.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array
from dsmgp._util.warnings import warn_user
from dsmgp.distributed.row_files import FOLDER, remove_replaced
from dsmgp.distributed.row_store import RowStore, check_empty
from dsmgp.distributed.workers import LocalWorkers
from dsmgp.experts.backends.interface import BoundKernels, LeafKernel, kernel_codes
from dsmgp.experts.backends.shared_backend import SharedFactorBackend
from dsmgp.experts.interface import LeafPosterior
from dsmgp.experts.lazy_posterior import LazyLeafPosterior
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.gp.process import Family, kernels_by_leaf
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.mixture.edges import Edges
from dsmgp.mixture.model import WEIGHTS, Model
from dsmgp.mixture.weights.gating import BOUNDS, Gate
from dsmgp.mixture.weights.row_scale import RowScale
from dsmgp.persistence import checks
from dsmgp.persistence.model_path import MODEL
from dsmgp.persistence.processes import read_leaf_parameters, write_leaf_parameters
from dsmgp.persistence.record import ArrayField, Entry, Length, Part, Record, Section, refused
from dsmgp.persistence.tree import read_tree, write_tree
from dsmgp.tree.nodes import Node, leaves

__all__ = ["read_mixture", "remove_forgotten_rows", "write_mixture"]

# Rounded, as logarithms are what a fit bounds.
SHAPES = np.exp(BOUNDS["shape"]) * [1 - 1e-9, 1 + 1e-9]

# Factors of variances beyond this are no result of a fit.
LARGEST_LOG_FACTOR = 40.0

# The bounds are those of a fit: beyond them a leaf that is less certain could outweigh one that is more so.
GATE = Record(
    "gate parameters",
    Gate,
    {
        "variance_exponent": Entry(checks.number(*BOUNDS["exponent"])),
        "scale_exponent": Entry(checks.number(*BOUNDS["scale"])),
        "shape_weights": ArrayField(("gate",), checks.NOT_NEGATIVE),
        "shape_variances": ArrayField(("gate",)),
    },
    check=lambda gate: (
        abs(gate.shape_weights.sum() - 1) <= 1e-9
        and bool(((gate.shape_variances >= SHAPES[0]) & (gate.shape_variances <= SHAPES[1])).all())
    ),
)
ROW_SCALE = Record(
    "scales of rows",
    RowScale,
    {
        "inputs": ArrayField((None,), checks.NOT_NEGATIVE, dtype=np.int64),
        "log_factors": ArrayField((None,)),
    },
    check=lambda scale: (
        len(scale.log_factors) == len(scale.inputs) + 1
        and bool((np.abs(scale.log_factors) < LARGEST_LOG_FACTOR).all())
    ),
)
EDGES = Record(
    "edges",
    Edges,
    {
        # Infinite where an input has no range.
        "low": ArrayField((None,), finite=False),
        "high": ArrayField((None,), finite=False),
        "unit": ArrayField((None,), checks.POSITIVE),
        "jump": Entry(checks.number(0.0)),
        "growth": ArrayField((None,), checks.NOT_NEGATIVE, optional=True),
    },
    check=lambda edges: (
        len(edges.low) == len(edges.high)
        and bool((edges.low <= edges.high).all())
        and (edges.growth is None or len(edges.growth) == len(edges.low))
    ),
)
MIXTURE = Record(
    "weights, which do not go with its gate",
    SimpleNamespace,
    {
        "family": ArrayField(("leaves",), checks.NOT_NEGATIVE, np.int32, "leaf.family"),
        "scales": ArrayField(("leaves", "outputs"), checks.POSITIVE, array_name="leaf.scale"),
        "weights": Entry(checks.one_of(*WEIGHTS)),
        "gate": Part(GATE, optional=True),
        "row_scale": Part(ROW_SCALE, optional=True),
        "edges": Part(EDGES, optional=True),
    },
    check=lambda stored: (stored.gate is not None) == (stored.weights == "gated"),
)


ROW_STORE = Record(
    "row files",
    RowStore.stored,
    {
        "n_rows": Entry(checks.count(1)),
        "n_inputs": Length("inputs"),
        "n_outputs": Length("outputs"),
        "firsts": ArrayField((None,), dtype=np.int64),
        "sizes": ArrayField(("leaves",), checks.NOT_NEGATIVE, np.int64),
        # Files of version 0.1, one for each shard, have checksums and no groups.
        "former": ArrayField((None,), dtype=np.int64, array_name="checksums", optional=True),
        "files": ArrayField((None, 3), checks.NOT_NEGATIVE, np.int64, optional=True),
    },
    values={"files": lambda store: store.files.groups, "former": lambda store: store.files.former},
)
STORE = Part(ROW_STORE, "store")
# Of leaves in memory, so that those that are not asked need not be conditioned.
LEAF_EVIDENCE = ArrayField(("leaves", "outputs"), array_name="leaf.log_evidence")
# Computing these would read all rows.
LOG_EVIDENCE = ArrayField(("leaves", "outputs"), array_name="store.log_evidence")
LOG_JACOBIAN = Entry(checks.number(), "store.log_jacobian", optional=True)


# Relative error of a log evidence that was computed elsewhere, with other rounding.
EVIDENCE_TOLERANCE = {"float64": 1e-6, "float32": 1e-2}
# Noise, relative to the prior variance, with which evidences are the same on all machines up to that.
ACCURATE_NOISE = 1e-6


def write_mixture(model: Model, rows: TrainingRows, path: Path, section: Section) -> Path:
    """Write a mixture, and return where its file goes: into a folder if its rows are in files."""
    MIXTURE.write(model, section)
    write_tree("tree", model.tree, model.inputs.to_coordinates(rows.X), replace(section, header={}))
    write_leaf_parameters(model, section)
    posterior = model.leaf_posterior.settled()
    store = posterior.leaf_gps.store
    if store is not None:
        _copy_rows(store, path)
        STORE.write(store, section)
        LOG_EVIDENCE.write(posterior.log_evidence, section)
        if model.outputs.warps:
            LOG_JACOBIAN.write(model.log_jacobian, section)
        return path / MODEL
    LEAF_EVIDENCE.write(posterior.log_evidence, section)
    return path


def read_mixture(
    section: Section,
    config: FitConfig,
    rows: TrainingRows,
    families: list[Family],
    scaling: tuple[InputScaling, OutputScaling],
    folder: Path,
) -> Model:
    """Read a mixture and condition its leaves on their rows."""
    U = scaling[0].to_coordinates(rows.X)
    tree = read_tree("tree", U, replace(section, header={}))
    section.sizes["leaves"] = len(leaves(tree))
    stored = MIXTURE.read(section)
    family = stored.family.astype(np.int64)
    if not np.array_equal(np.unique(family), np.arange(len(families))):
        raise ModelFileError(
            "its array 'leaf.family' does not name all of its families, and only these"
        )
    parameters, thetas = read_leaf_parameters(section, families, family)
    kernels = kernels_by_leaf(families, family)
    posterior: LeafPosterior
    if "store" in section.header:
        store, memory = STORE.read(section).moved(folder), 0.5 * config.memory
        pool = LocalWorkers(memory, config.device)
        sharded = store.leaf_gps(pool, kernels, scaling, 0.5 * memory, config.dtype)
        _check_variances(stored, scaling[1], sharded.bind(parameters))
        posterior = sharded.condition_later(parameters, memory, LOG_EVIDENCE.read(section))
        log_jacobian = LOG_JACOBIAN.read(section) or 0.0
    else:
        leaf_gps = _leaf_gps(tree, rows, kernels, scaling, config)
        _check_variances(stored, scaling[1], leaf_gps.bind(parameters))
        # Hyperparameters of a leaf's own are checked by conditioning it.
        lazily = thetas is None and section.has_array("leaf.log_evidence")
        posterior = _condition(section, leaf_gps, parameters, 0.5 * config.memory, lazily)
        log_jacobian = scaling[1].log_jacobian(rows.Y, rows.weights)
    model = Model(
        tree, families, family, posterior, *scaling, stored.weights, stored.scales, stored.gate, thetas,
        row_scale=stored.row_scale, log_jacobian=log_jacobian, n_observations=rows.n_observations,
        edges=stored.edges,
    )  # fmt: skip
    if stored.row_scale is not None and (stored.row_scale.inputs >= rows.X.shape[1]).any():
        raise ModelFileError("its scales of rows are those of inputs that it does not have")
    edges = stored.edges
    if edges is not None and (len(edges.low), len(edges.unit)) != (
        rows.X.shape[1],
        scaling[0].n_coordinates,
    ):
        raise ModelFileError("its edges are those of other inputs")
    return model


def _leaf_gps(
    tree: Node,
    rows: TrainingRows,
    kernels: Sequence[Sequence[LeafKernel]],
    scaling: tuple[InputScaling, OutputScaling],
    config: FitConfig,
) -> InMemoryLeafGPs:
    """Set up the leaves as a fit does."""
    return InMemoryLeafGPs(
        leaves(tree),
        rows.leaf_data(*scaling),
        kernels,
        memory=0.25 * config.memory,
        device=config.device,
        dtype=config.dtype,
    )


def _condition(
    section: Section,
    leaf_gps: InMemoryLeafGPs,
    parameters: Sequence[Array],
    memory: float,
    lazily: bool,
) -> LeafPosterior:
    """Condition leaves on their rows, now or when they are first asked.

    Parameters
    ----------
    section : Section
        With the log evidence of the leaves.
    leaf_gps : InMemoryLeafGPs
    parameters : sequence of ndarray
        Kernel parameters by output.
    memory : float
        Bytes up to which Cholesky factors are kept.
    lazily : bool
        Whether to wait until leaves are asked, unless they share factors or the file has another evidence.
    """
    if lazily:
        evidence = LEAF_EVIDENCE.read(section)
        bound = leaf_gps.bind(parameters)
        if SharedFactorBackend.where_it_pays(leaf_gps, bound, memory) is None:
            posterior = LazyLeafPosterior(leaf_gps, parameters, evidence, memory)
            # With next to no noise another machine rounds otherwise: its own evidence counts.
            if _evidence_agrees(posterior):
                return posterior
    return _conditioned(leaf_gps, parameters, memory)


def _conditioned(leaf_gps: Any, parameters: Sequence[Array], memory: float) -> LeafPosterior:
    """Condition all leaves; refuse hyperparameters with which a covariance cannot be factorised, or numbers overflow."""
    with refused("hyperparameters", NotFactorisedError), np.errstate(all="ignore"):
        posterior: LeafPosterior = leaf_gps.condition(parameters, memory)
    if not np.isfinite(posterior.log_evidence).all():
        raise ModelFileError("its hyperparameters are out of range")
    return posterior


def _evidence_agrees(posterior: LazyLeafPosterior) -> bool:
    """Return whether the hyperparameters give the evidence in the file, by the smallest leaf of each kernel.

    Where they do not although there is enough noise for a matrix to be factorised accurately, the file is refused.
    """
    leaf_gps = posterior.leaf_gps
    sizes, codes = leaf_gps.leaf_rows.sizes, np.array(kernel_codes(leaf_gps.kernels))
    occupied = np.flatnonzero(sizes)
    chosen = [
        int(of_kernel[np.argmin(sizes[of_kernel])])
        for of_kernel in (occupied[codes[occupied] == code] for code in np.unique(codes[occupied]))
    ]
    some = leaf_gps.rebuild(
        leaf_gps.leaf_rows.take(np.array(chosen, dtype=np.int64)),
        leaf_gps.data,
        [[of_output[k] for k in chosen] for of_output in leaf_gps.kernels],
    )
    parameters = [p if p.ndim == 1 else p[chosen] for p in posterior.kernel_parameters]
    with np.errstate(all="ignore"):
        found = some.log_evidence(parameters)
    if not np.isfinite(found).all():
        raise ModelFileError("its hyperparameters are out of range")
    expected = posterior.log_evidence[chosen]
    tolerance = EVIDENCE_TOLERANCE[leaf_gps.dtype] * (1.0 + np.abs(expected) + sizes[chosen, None])
    agrees = np.abs(found - expected) <= tolerance
    accurate = posterior.noise[chosen] > ACCURATE_NOISE * posterior.bound.prior_variance[chosen]
    if (accurate & ~agrees).any():
        raise ModelFileError("its hyperparameters do not go with the evidence of its leaves")
    return bool(agrees.all())


def _check_variances(stored: SimpleNamespace, outputs: OutputScaling, bound: BoundKernels) -> None:
    """Refuse a model whose leaves have variances that are no positive numbers in the user's units.

    Parameters
    ----------
    stored : SimpleNamespace
        With the ``scales`` and the ``gate`` of the model.
    outputs : OutputScaling
    bound : BoundKernels
        The kernels of the leaves at their hyperparameters.
    """
    prior = bound.prior_variance
    prior = np.where(prior < np.finfo(np.float64).max, prior, 0.0)  # where there is no bound
    with np.errstate(all="ignore"):
        factor = stored.scales * (stored.gate or Gate()).mean_variance
        smallest, largest = (
            outputs.moments_from_latent(
                np.broadcast_to(outputs.centre, prior.shape),
                outputs.variance_to_latent(variance * factor),
            )[1]
            for variance in (bound.noise, bound.noise + prior)
        )
    if not all((np.isfinite(each) & (each > 0)).all() for each in (smallest, largest)):
        raise ModelFileError("it has variances that are out of range")


def remove_forgotten_rows(model: Model, path: Path) -> None:
    """Remove the files of forgotten rows from the folder of a model that has been saved there."""
    store = model.leaf_posterior.settled().leaf_gps.store
    if store is None or path.resolve() != store.folder.resolve():
        return
    left = remove_replaced(store.folder, store.replaced)
    if left:
        warn_user(
            f"rows that were forgotten are still in {len(left)} files of {path}, since another model in this process uses them: delete it, "
            "and save this one again",
            topic="forgotten rows",
        )


def _copy_rows(store: RowStore, folder: Path) -> None:
    """Copy row files into a folder, unless they are there; the model file comes last, so a folder that has one is complete."""
    is_same = folder.resolve() == store.folder.resolve()
    if not is_same:
        check_empty(folder)
    missing = [path.name for path in store.files.paths if not path.exists()]
    if missing:
        raise ModelFileError(
            f"{store.folder} lacks {len(missing)} of the files with the rows of this model, such as {missing[0]}; fit again"
        )
    try:
        folder.mkdir(exist_ok=True)
        (folder / FOLDER).mkdir(exist_ok=True)
        if not is_same:
            for path in store.files.paths:
                shutil.copyfile(path, folder / FOLDER / path.name)
    except OSError as error:
        raise ModelFileError(f"cannot write rows in {folder}: {error.strerror}") from error
