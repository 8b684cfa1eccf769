"""What the machine offers is asked for without importing torch or numba."""

import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dsmgp
from dsmgp._util import machine

SOURCE = Path(dsmgp.__file__).parent
NEED_TORCH = {"dsmgp.linalg.tensors", "dsmgp.linalg.triangular"}
NEED_NUMBA = {
    "dsmgp._util.numba_arrays", "dsmgp.linalg.lapack_numba", "dsmgp.tree.routing_numba",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_known():
    """Forget what was found out, before and after."""
    cached = (machine.has_numba, machine.has_torch, machine._has_gpu_driver)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    """Feign which packages are installed."""

    def only(*names):
        found = {name: types.SimpleNamespace() for name in names}
        monkeypatch.setattr(machine.importlib.util, "find_spec", found.get)

    return only


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_modules_without_torch_do_not_import_it():
    modules = []
    for package in ("linalg", "tree", "_util"):
        for path in sorted((SOURCE / package).glob("*.py")):
            modules.append(f"dsmgp.{package}.{path.stem}".removesuffix(".__init__"))
    needed = NEED_TORCH if machine.has_numba() else NEED_TORCH | NEED_NUMBA
    modules = [name for name in modules if name not in needed]
    assert len(modules) > 20
    run(f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
""")


def test_questions_about_the_machine_do_not_import_packages():
    run("""
import sys
from dsmgp._util import machine
machine.GPU_LIBRARIES, machine.AMD_DRIVER = ("libnone.so",), "/dev/none"
machine.has_torch(), machine.memory(), machine.cache_numbers()
assert not machine.has_cuda()
assert machine.memory("cuda") == machine.memory("cpu")
assert not {"torch", "numba"} & set(sys.modules)
""")


def test_an_environment_variable_turns_compiled_code_off(monkeypatch, installed):
    installed("numba")
    monkeypatch.delenv("DSMGP_NO_NUMBA", raising=False)
    assert machine.has_numba()
    for text, expected in (("1", False), ("", True)):
        monkeypatch.setenv("DSMGP_NO_NUMBA", text)
        machine.has_numba.cache_clear()
        assert machine.has_numba() is expected


def test_what_is_not_installed_is_not_there(monkeypatch, installed):
    monkeypatch.delenv("DSMGP_NO_NUMBA", raising=False)
    installed()
    assert not machine.has_numba()
    assert not machine.has_torch()
    assert not machine.has_cuda()
    assert machine.memory("cuda") == machine.memory()


@pytest.mark.parametrize("names", [(), ("torch",), ("gpytorch",)])
def test_features_of_torch_say_what_to_install(installed, names):
    installed(*names)
    with pytest.raises(
        ImportError, match=r"^device='cuda' needs torch .*install 'dsmgp\[torch\]'$"
    ):
        machine.require_torch("device='cuda'")


def test_nothing_is_asked_for_where_torch_is_installed(installed):
    installed("torch", "gpytorch")
    machine.require_torch("device='cuda'")


@pytest.fixture
def feigned_torch(monkeypatch, installed):
    """A torch with a GPU of 8 GB, of which other processes hold 5 and torch keeps 1 in reserve."""
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        mem_get_info=lambda device: (2 * 10**9, 8 * 10**9),
        memory_reserved=lambda device: 10**9,
        memory_allocated=lambda device: 0,
    )
    installed("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_a_torch_that_is_loaded_is_asked_for_its_gpu(feigned_torch):
    assert machine.has_cuda()
    assert machine.memory("cuda") == machine.memory("cuda:1") == 3e9
    assert machine.memory("cpu") != 3e9
    feigned_torch.cuda.is_available = lambda: False
    assert not machine.has_cuda()
    assert machine.memory("cuda") == machine.memory()


def test_torch_is_imported_only_where_a_gpu_has_a_driver(monkeypatch, installed):
    installed("torch")
    imported = []

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            imported.append(name)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder])
    monkeypatch.setattr(machine, "GPU_LIBRARIES", ("libnone.so",))
    monkeypatch.setattr(machine, "AMD_DRIVER", "/dev/none")
    assert not machine.has_cuda()
    assert not imported
    monkeypatch.setattr(machine, "AMD_DRIVER", "/")
    machine._has_gpu_driver.cache_clear()
    with pytest.raises(ImportError):  # it was tried
        machine.has_cuda()
    assert imported == ["torch"]


def test_libraries_that_are_there_can_be_loaded():
    assert not machine._can_load("libnone.so")
    if sys.platform == "linux":
        assert machine._can_load("libc.so.6")


def test_unknown_memory_is_no_limit(monkeypatch):
    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(machine.os, "sysconf", unknown)
    assert math.isinf(machine.memory())


def test_a_numba_that_fails_is_told_and_done_without(tmp_path):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text(
        "raise ImportError('Numba needs NumPy 2.3 or less')"
    )
    code = """
import warnings, sys
import numpy as np
from dsmgp import DSMGPRegressor
X = np.linspace(0, 1, 60)[:, None]
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    model = DSMGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
assert np.abs(model.predict(X) - np.sin(6 * X[:, 0])).max() < 0.05
messages = [str(one.message) for one in found]
assert messages == ["numba cannot be used (Numba needs NumPy 2.3 or less): leaves are computed in NumPy, which takes longer"], messages
"""
    source = str(Path(dsmgp.__file__).parents[1])
    path = os.pathsep.join([str(tmp_path), source])
    environment = {**os.environ, "PYTHONPATH": path, "DSMGP_NO_NUMBA": "", "DSMGP_NO_SHIPPED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
