"""Write the LLVM code of the compiled kernels, which is shipped with the package: see src/dsmgp/_util/compiled.py.

    python tools/kernels.py          # or make kernels

To be run, and its result committed, whenever a module with kernels changes; tests/_util/test_compiled.py says when it was forgotten. The code
is as numba writes it, before LLVM optimises it for a processor.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import lzma
import os
import re
import tempfile
from pathlib import Path

# Before numba is imported: code as it is before LLVM optimises it, and none from the cache.
os.environ["NUMBA_OPT"] = "0"
os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()

import llvmlite.binding as llvm
from numba import types

from dsmgp._util.compiled import LLVM_CODE, symbol
from dsmgp._util.numba_arrays import KERNELS

# Modules that define kernels, or functions that kernels call.
MODULES = [
    "dsmgp._util.numba_arrays",
    "dsmgp.linalg.lapack_numba",
    "dsmgp.tree.routing_numba",
    "dsmgp.experts.backends.numba_kernels",
    "dsmgp.experts.backends.numba_leaf",
    "dsmgp.experts.backends.numba_entries",
    "dsmgp.experts.backends.numba_rows",
    "dsmgp.changepoints.numba_kernels",
]


def sources_hash() -> str:
    """Return a hash of the sources of all modules with compiled code."""
    digest = hashlib.sha256()
    for name in MODULES:
        digest.update(Path(importlib.import_module(name).__file__).read_bytes())
    return digest.hexdigest()


def kernel_code(dispatcher, name: str) -> str:
    """Return the LLVM code of a kernel and of all that it calls, under the kernel's name."""
    dispatcher.targetoptions |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    dispatcher.compile((types.CPointer(types.int64),))
    (result,) = dispatcher.overloads.values()
    code = result.library.get_llvm_str()
    return portable(code.replace(f"@{result.fndesc.mangled_name}(", f'@"{name}"('))


def portable(code: str) -> str:
    """Return code that other versions of LLVM read too, without addresses of the process that wrote it."""
    code = re.sub(r"inttoptr \(i64 \d+ to ptr\)", "null", code)
    addresses = list(dict.fromkeys(re.findall(r"numba\.dynamic\.globals\.[0-9a-f]+", code)))
    for k, named_by_address in enumerate(addresses):
        code = code.replace(named_by_address, f"dynamic.{k}")
    code = code.replace(" captures(none)", "").replace("define linkonce_odr", "define internal")
    code = re.sub(r"^(@.*) = (common|linkonce) global", r"\1 = internal global", code, flags=re.M)
    code = re.sub(r"^(target|source_filename|; ModuleID|attributes).*\n", "", code, flags=re.M)
    code = re.sub(r"^(declare .*\)) #\d+$", r"\1", code, flags=re.M)
    return code.replace("@sqrt(", "@llvm.sqrt.f64(")  # which is an instruction, not a call


def main() -> None:
    for module in MODULES:
        importlib.import_module(module)
    kernels = {
        symbol(module, function): kernel_code(dispatcher, symbol(module, function))
        for (module, function), dispatcher in sorted(KERNELS.items())
    }
    for code in kernels.values():
        llvm.parse_assembly(code).verify()
    content = json.dumps({"sources": sources_hash(), "kernels": kernels}).encode()
    LLVM_CODE.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{LLVM_CODE}: {len(kernels)} kernels, {LLVM_CODE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
