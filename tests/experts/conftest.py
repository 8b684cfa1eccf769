"""The backends that every test of leaf GPs runs with."""

import pytest

from dsmgp._util.machine import has_numba
from dsmgp.experts.backends.numba_backend import NumbaBackend
from dsmgp.experts.backends.numpy_backend import NumpyBackend


@pytest.fixture(params=["numba", "numpy", "torch"])
def backend(request, monkeypatch):
    """Leaves are computed by compiled code where it supports their kernels, by NumPy, and by torch."""
    if request.param == "numba" and not has_numba():
        pytest.skip("needs numba")
    if request.param == "numpy":
        monkeypatch.setattr(NumbaBackend, "supports", staticmethod(lambda kernels: False))
    if request.param == "torch":
        pytest.importorskip("torch")
        monkeypatch.setattr(NumpyBackend, "supports", staticmethod(lambda kernels: False))
    return request.param
