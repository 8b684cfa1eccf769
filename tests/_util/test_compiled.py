"""Kernels shipped as LLVM code: up to date, the same as numba's, cached, and never imported with numba."""

import importlib.util
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaln

from dsmgp._util import compiled
from dsmgp._util.compiled import Kernel, encode

pytest.importorskip("numba")
ROOT = Path(__file__).parents[2]
SOURCE = Path(compiled.__file__).parents[1]
DESCEND = ("dsmgp.tree.routing_numba", "descend")
FIT = """
import sys
import numpy as np
from dsmgp import DSMGPRegressor
X = np.linspace(0, 1, 60)[:, None]
model = DSMGPRegressor("rbf", max_iter=3, random_state=0).fit(X, np.sin(6 * X[:, 0]))
model.predict(X, return_std=True)
model.predict(X[:1], return_std=True)  # few rows have a kernel of their own
assert "numba" not in sys.modules, "numba was imported"
"""


def builder():
    spec = importlib.util.spec_from_file_location("kernels", ROOT / "tools" / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not (ROOT / "tools").exists(), reason="not in the source tree")
def test_the_shipped_code_is_that_of_the_sources(monkeypatch):
    for name in ("NUMBA_OPT", "NUMBA_CACHE_DIR"):  # which the builder sets
        monkeypatch.setenv(name, os.environ.get(name, ""))
    content = json.loads(lzma.decompress(compiled.LLVM_CODE.read_bytes()))
    assert content["sources"] == builder().sources_hash(), "run make kernels and commit the result"


def test_every_kernel_is_shipped():
    found = [
        re.findall(r'Kernel\(\s*"(\S+)", "(\w+)"', path.read_text())
        for path in SOURCE.rglob("*.py")
    ]
    used = {".".join(names) for of_file in found for names in of_file}
    assert used == set(compiled.shipped_code())


def descended(kernel):
    """Rows on both sides of a cut at 0.5."""
    node, X = np.zeros(3, np.int64), np.array([[0.2], [0.5], [0.9]])
    below, above = np.array([1, 1, 2]), np.array([2, 1, 2])
    split = np.array([0.5, np.inf, np.inf])
    kernel(np.zeros(3, np.int64), split, below, above, X, node)
    return node.tolist()


def test_numba_computes_the_same_where_nothing_is_shipped(monkeypatch):
    assert descended(Kernel(*DESCEND)) == [1, 2, 2]
    monkeypatch.setattr(compiled, "load_shipped", lambda name: None)
    assert descended(Kernel(*DESCEND)) == [1, 2, 2]


def test_a_fit_and_a_prediction_do_not_import_numba(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "DSMGP_NO_NUMBA"}
    done = subprocess.run(
        [sys.executable, "-c", FIT], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


def load():
    """Load a kernel anew, as another process would."""
    return compiled._load(compiled.symbol(*DESCEND), compiled.shipped_code()[".".join(DESCEND)])


def test_machine_code_is_kept(empty_cache, monkeypatch):
    assert load() is not None
    assert len(list(empty_cache.glob("dsmgp-*.o"))) == 1
    monkeypatch.setattr(compiled, "_compile", None)
    assert load() is not None


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"", lambda b: b[:-1] + b"x"])
def test_damaged_machine_code_is_made_again(empty_cache, damage):
    load()
    (file,) = empty_cache.glob("dsmgp-*.o")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert load() is not None
    assert file.read_bytes() == whole


def test_without_a_folder_to_write_nothing_is_kept(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked / "folder"))
    assert compiled.cache_folder() is None
    assert load() is not None


def test_code_that_llvm_cannot_read_is_left_to_numba(monkeypatch):
    compiled._load_shipped.cache_clear()
    monkeypatch.setattr(compiled, "shipped_code", lambda: {".".join(DESCEND): "not LLVM code"})
    assert compiled.load_shipped(".".join(DESCEND)) is None
    compiled._load_shipped.cache_clear()


def test_functions_that_the_process_lacks_are_left_to_numba(monkeypatch, empty_cache):
    monkeypatch.setattr(compiled, "LIBRARY", ("no_such_function",))
    assert load() is None


def test_blocks_hold_addresses_shapes_and_bits():
    a, b = np.zeros((2, 3)), np.zeros(4, np.int64)
    c = np.zeros((1, 2), np.float32)
    block = encode((7, 1.5, a, b, c))
    assert block.tolist() == [
        7, np.float64(1.5).view(np.int64), a.ctypes.data, 2, 3, b.ctypes.data, 4, c.ctypes.data, 1, 2,
    ]  # fmt: skip
    for array in (a.T, np.zeros(3, np.int32)):
        with pytest.raises(ValueError, match="contiguous array of 64-bit"):
            encode((array,))


def test_the_logarithm_of_the_gamma_function_is_scipys():
    from dsmgp.experts.backends.numba_leaf import log_gamma

    x = np.geomspace(1e-3, 1e7, 300)
    found = np.array([log_gamma.py_func(each) for each in x])
    np.testing.assert_allclose(found, gammaln(x), rtol=1e-13, atol=1e-13)
