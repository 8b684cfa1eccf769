"""A fitted model whose rows change: rows come, rows go, and what is due after that is done.

Rows that come or go change the leaves they reach and nothing else; tree, units, theta and gate stay. What may be due
after many changes: leaves that have outgrown their size are cut, scales and gate fitted again (a *review*), and in the
end everything is fitted afresh. When it is due depends on the number of rows that came and went, not on how they were
put into batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.effort import EFFORTS
from dsmgp.execution import as_tensor
from dsmgp.loo import equal_rows
from dsmgp.model import Model
from dsmgp.online import Online
from dsmgp.routes import Routes, place
from dsmgp.settings import Settings
from dsmgp.train import length_scales
from dsmgp.tree import Leaf, Node, Product, Sum, leaves, nodes
from dsmgp.validation import check_reach
from dsmgp.weigh import Witnesses, weigh

__all__ = ["Changing", "Rows"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# A review is due when so many of the rows there were have changed, a fit when all of them have.
REVIEW_SHARE = 0.2
# A leaf is cut when it holds so many times the rows that the largest leaf of its partition had.
OUTGROWN = 1.5
# Bytes that leaves which have changed may take beside the others, over what the others' factors may.
LIVE_SHARE = 0.5


@dataclass(frozen=True)
class Rows:
    """Training rows in the user's units, and their numbers: in order of arrival, never used twice."""

    X: Array
    Y: Array
    noise: Array | None
    ids: Index
    #: The number that the next row gets.
    following: int

    @classmethod
    def first(cls, X: Array, Y: Array, noise: Array | None) -> Rows:
        return cls(X, Y, noise, np.arange(len(X)), len(X))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tables(self) -> list[Array]:
        """All that was given."""
        return [self.X, self.Y, *([] if self.noise is None else [self.noise])]

    def joined(self, X: Array, Y: Array, noise: Array | None) -> Rows:
        ids = np.arange(self.following, self.following + len(X))
        if self.noise is None and noise is None:
            together = None
        else:
            parts = [
                np.zeros_like(y) if n is None else n for n, y in ((self.noise, self.Y), (noise, Y))
            ]
            together = np.concatenate(parts)
        return Rows(
            np.concatenate([self.X, X]),
            np.concatenate([self.Y, Y]),
            together,
            np.concatenate([self.ids, ids]),
            self.following + len(X),
        )

    def places(self, ids: Index) -> Index:
        """Where rows that are to go stand; refused where they are not there, or too few would stay."""
        where = np.searchsorted(self.ids, ids)
        there = where < len(self.ids)
        there[there] = self.ids[where[there]] == ids[there]
        if not there.all():
            missing = ids[~there]
            raise ValueError(
                f"row {missing[0]} cannot be forgotten: it was never given, or is forgotten already; "
                f"row_ids_ lists the {len(self)} rows that are there"
            )
        if len(ids) > len(self) - 2:
            raise ValueError(
                f"cannot forget {len(ids)} of {len(self)} rows: at least two must stay"
            )
        return np.asarray(where)

    def without(self, places: Index) -> Rows:
        noise = None if self.noise is None else np.delete(self.noise, places, axis=0)
        X, Y = (np.delete(table, places, axis=0) for table in (self.X, self.Y))
        return Rows(X, Y, noise, np.delete(self.ids, places), self.following)


@dataclass(frozen=True)
class Changing:
    """A model, the rows it has seen, and how far it has moved from what it was fitted on.

    Attributes
    ----------
    model, rows
    local_scale : whether leaves have scales of their own
    sizes : for each leaf, the rows of the largest leaf of its partition when the tree was grown
    n_fitted : rows there were when everything was fitted
    scores : those of :func:`~dsmgp.weigh.weigh`, None when rows have changed since
    n_changed : rows that came or went since everything was fitted
    n_reviewed : what that was at the last review
    """

    model: Model
    rows: Rows
    local_scale: bool
    sizes: Index
    n_fitted: int
    scores: tuple[float, float] | None = None
    n_changed: int = 0
    #: What ``n_changed`` was at the last review.
    n_reviewed: int = 0

    @classmethod
    def first(
        cls, model: Model, rows: Rows, local_scale: bool, scores: tuple[float, float]
    ) -> Changing:
        """As fitted."""
        partitions = model.tree.children if isinstance(model.tree, Sum) else (model.tree,)
        own = [[leaf.n_rows for leaf in leaves(part)] for part in partitions]
        sizes = np.repeat([max(one) for one in own], [len(one) for one in own])
        return cls(model, rows, local_scale, sizes, len(rows), scores)

    def joined(self, X: Array, Y: Array, noise: Array | None = None) -> Changing:
        """With more rows; tree, units, theta and gate stay."""
        model, known = self.model, self._known(noise)
        rows = self.rows.joined(X, Y, noise)
        ids = rows.ids[len(self.rows) :]
        single = model.experts.experts.X.dtype == torch.float32
        seen = (
            check_reach(model.inputs.to_experts(X), "X", single),
            check_reach(model.outputs.to_experts(Y), "y", single),
        )
        return self._moved(rows, X, lambda online, routes: online.joined(routes, ids, *seen, known))

    def without(self, ids: Index) -> Changing:
        """Without some rows."""
        places = self.rows.places(ids)
        gone = self.rows.X[places]
        rows = self.rows.without(places)
        return self._moved(rows, gone, lambda online, routes: online.without(routes, ids))

    def _moved(
        self, rows: Rows, moving: Array, change: Callable[[Online, Routes], Online]
    ) -> Changing:
        """On other rows, of which ``moving`` have come or gone."""
        n_changed = self.n_changed + len(moving)
        moved = replace(self, rows=rows, n_changed=n_changed, scores=None)
        online = Online.of(self.model.experts, self.rows.ids)
        routes = self.model.router.route(moving)
        if online.n_bytes(routes.leaf) > LIVE_SHARE * online.base.memory:
            return moved.settled
        online = change(online, routes)
        model = self.model.with_experts(online)
        if self.local_scale:
            model.scales = model.scales.copy()
            model.scales[routes.leaf] = online.scales(routes.leaf)
        return replace(moved, model=model)

    def _known(self, noise: Array | None) -> Array | None:
        """Noise as the experts see it."""
        outputs = self.model.outputs
        if noise is None:
            return None
        if not outputs.diagonal:
            raise ValueError(
                "noise cannot be given here: the outputs were mixed when the model was fitted without it; "
                "call fit on all rows with their noise"
            )
        return outputs.noise_to_experts(noise)

    # What is due

    @property
    def until_review(self) -> int:
        """Rows that may come or go before a review is due; at least one, as a review that was due has been made."""
        return self._step - self.n_changed % self._step

    @property
    def _step(self) -> int:
        return max(1, int(REVIEW_SHARE * self.n_fitted))

    @property
    def review_is_due(self) -> bool:
        """Whether just as many rows have changed as there may between reviews."""
        return self.n_changed > 0 and self.n_changed % self._step == 0

    @property
    def review_is_overdue(self) -> bool:
        """Whether a review was due while nobody was to make one."""
        return self.n_changed // self._step > self.n_reviewed // self._step

    @property
    def fit_is_due(self) -> bool:
        return self.n_changed >= self.n_fitted

    @cached_property
    def settled(self) -> Changing:
        """The same with all leaves conditioned together, and the tree naming the rows of now."""
        if self.scores is not None:
            return self
        tree = place(self.model.tree, self.rows.X, anew=True)
        every = np.arange(len(leaves(tree)))
        return self._conditioned(tree, every, None, np.random.default_rng(0))

    def reviewed(self, settings: Settings, rng: np.random.Generator) -> tuple[Changing, int]:
        """With outgrown leaves cut, scales and gate fitted again; and how many leaves were cut."""
        tree = place(self.model.tree, self.rows.X, anew=True)
        unit = length_scales(self.model.families[0], self.model.inputs.scale)
        tree, origin = _cut_outgrown(tree, self.rows.X, self.sizes, unit)
        n_cut = len(np.unique(origin[np.flatnonzero(np.bincount(origin)[origin] > 1)]))
        done = self._conditioned(tree, origin, settings, rng)
        return replace(done, n_reviewed=self.n_changed), n_cut

    def _conditioned(
        self, tree: Node, origin: Index, settings: Settings | None, rng: np.random.Generator
    ) -> Changing:
        """All leaves anew, with the theta of the leaves they come from; the gate too if there are settings to
        fit it by."""
        model, old = self.model, Online.of(self.model.experts, self.rows.ids).base
        like, labels = old.experts.X, equal_rows(self.rows.X)
        rows, known = self.rows, self._known(self.rows.noise)
        experts = old.experts.again(
            leaves(tree),
            as_tensor(model.inputs.to_experts(rows.X), like),
            as_tensor(model.outputs.to_experts(rows.Y), like),
            [[own[k] for k in origin] for own in old.experts.laws],
            None if known is None else as_tensor(known, like),
            labels,
        )
        naturals: list[Tensor] = [n if n.ndim == 1 else n[origin] for n in old.naturals]
        gated = settings is not None and model.weights == "gated"
        n_gate_rows = EFFORTS[settings.effort].n_gate_rows if settings and gated else 0
        witnesses = Witnesses.draw(len(rows), n_gate_rows, rng)
        conditioned = old.again(experts, naturals, labels, witnesses.rows)
        new = replace(
            model,
            tree=tree,
            family=model.family[origin],
            experts=conditioned,
            scales=model.scales[origin],
            thetas=None if model.thetas is None else [own[origin] for own in model.thetas],
        )
        scores = weigh(new, self.local_scale, witnesses)
        return replace(self, model=new, scores=scores, sizes=self.sizes[origin])


def _cut_outgrown(root: Node, X: Array, sizes: Index, unit: Array) -> tuple[Node, Index]:
    """The tree with every leaf cut that holds too many rows, and for each new leaf the old one it comes from."""
    number = {id(leaf): k for k, leaf in enumerate(leaves(root))}
    new: dict[int, Node] = {}
    for node in reversed(list(nodes(root))):
        match node:
            case Leaf():
                new[id(node)] = _cut(node, X, OUTGROWN * sizes[number[id(node)]], unit)
            case Product():
                children = tuple(new[id(child)] for child in node.children)
                new[id(node)] = Product(children, node.dimension, node.splits)
            case Sum():
                children = tuple(new[id(child)] for child in node.children)
                new[id(node)] = Sum(children, node.log_weights)
    origin = [number[id(old)] for old in leaves(root) for _ in leaves(new[id(old)])]
    return new[id(root)], np.array(origin)


def _cut(leaf: Leaf, X: Array, most: float, unit: Array) -> Node:
    """A leaf, or a nest of products of its halves, along the input in which its rows are spread most."""
    if leaf.n_rows <= most or leaf.rows is None:
        return leaf
    own = X[leaf.rows]
    for dimension in np.argsort(-np.ptp(own, axis=0) / unit, kind="stable").tolist():
        values = np.unique(own[:, dimension])
        if len(values) < 2:
            continue
        # Halfway between the two values around the median, so that a point on either side is no closer to the cut.
        middle = int(
            np.clip(np.searchsorted(values, np.median(own[:, dimension])), 1, len(values) - 1)
        )
        split = 0.5 * (values[middle - 1] + values[middle])
        if not values[middle - 1] < split:
            split = values[middle]
        parts = leaf.region.split(dimension, [split])
        below = own[:, dimension] < split
        halves = [
            _cut(Leaf(part, leaf.rows[side]), X, most, unit)
            for part, side in zip(parts, (below, ~below), strict=True)
        ]
        return Product(tuple(halves), dimension, (float(split),))
    return leaf  # all of its rows are the same
