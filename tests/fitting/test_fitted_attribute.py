"""Attributes of the estimator that forward to its fitted state: read-only, shown by help(), absent before a fit."""

import pydoc
from types import SimpleNamespace

import pytest
from sklearn.exceptions import NotFittedError

from dsmgp import DSMGPRegressor
from dsmgp.fitting.fitted_attribute import FittedAttribute


class Estimator:
    size_ = FittedAttribute[int]("model.size")

    def __init__(self, state=None):
        self.state = state

    @property
    def state_(self):
        if self.state is None:
            raise NotFittedError("call fit first")
        return self.state


def test_the_quantity_is_read_from_the_state():
    estimator = Estimator(SimpleNamespace(model=SimpleNamespace(size=3)))
    assert estimator.size_ == 3
    estimator.state.model.size = 4
    assert estimator.size_ == 4


def test_it_cannot_be_set_and_is_not_there_before_a_fit():
    with pytest.raises(AttributeError, match="size_ cannot be set"):
        Estimator().size_ = 3
    assert not hasattr(Estimator(), "size_")
    with pytest.raises(NotFittedError, match="call fit first"):
        Estimator().size_  # noqa: B018


def test_help_and_dir_list_the_attributes_of_the_estimator():
    shown = pydoc.render_doc(DSMGPRegressor, renderer=pydoc.plaintext)
    described = shown.split("Data descriptors defined here:")[1]
    for name in ("kernel_", "n_induced_trees_", "tree_"):
        assert name in dir(DSMGPRegressor)
        assert f" {name}\n" in described
    assert "``state_.model.n_induced_trees``" in described
