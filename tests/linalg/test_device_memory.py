"""Work that runs out of a GPU's memory is tried again with less."""

import sys

import pytest

from dsmgp.linalg.device_memory import within_memory


def failing(errors):
    """Work that raises these errors one after the other, and then succeeds."""
    left = list(errors)

    def work():
        if left:
            raise left.pop(0)
        return "done"

    return work


def test_without_torch_errors_pass(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert within_memory(failing([]), lambda: False) == "done"
    for error in (MemoryError("no memory"), RuntimeError("other")):
        with pytest.raises(type(error), match=str(error)):
            within_memory(failing([error]), lambda: True)


def test_work_is_tried_again_with_less_for_as_long_as_that_helps():
    torch = pytest.importorskip("torch")
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB. GPU 0")
    steps = []

    def take_less():
        steps.append(None)
        return len(steps) < 3

    with pytest.warns(
        RuntimeWarning, match=r"out of memory. Tried to allocate 1 GiB\); continuing"
    ):
        assert within_memory(failing([short, short]), take_less) == "done"
    assert len(steps) == 2
    with pytest.raises(MemoryError, match=r"too little free memory.*use device='cpu'"):
        within_memory(failing([short]), take_less)
    with pytest.raises(RuntimeError, match="other"):
        within_memory(failing([RuntimeError("other")]), take_less)
