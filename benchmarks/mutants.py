"""Mutation testing: small faults put into the core, one at a time, and whether its tests notice.

    python benchmarks/mutants.py [--modules tree.nodes,mixture.inference,...] [--share 1.0] [--seed 0] [--results FILE]

A fault is one operator, comparison, number or condition changed in one place. Each runs the module's tests in a forked
child, which has torch and its friends loaded already; a child that fails, or takes far longer than it should, has noticed. Survivors are listed with their
line. Takes an hour or two for all; ``--share 0.1`` tries a tenth of them, drawn by the seed. Results are kept in
benchmarks/results/mutants.json; docs/mutants.md says which survivors are left, and why.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
from pathlib import Path

from harness import results_path, setting, table, write_report

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dsmgp"
TESTS = {
    "tree.nodes": ["tree/test_nodes.py", "tree/test_growing.py", "mixture/test_inference.py"],
    "mixture.inference": ["mixture/test_inference.py"],
    "mixture.weights.gating": [
        "mixture/weights/test_gating.py",
        "experts/test_loo.py",
        "fitting/rows/test_known_noise.py",
        "fitting/rows/test_sample_weight.py",
    ],
    "mixture.predictive.distribution": ["mixture/predictive/test_distribution.py"],
}
MOST_SECONDS = 300
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def places(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """Nodes that a fault can be put into, and what it is."""
    found: list[tuple[ast.AST, str]] = []
    hints = {id(inner) for node in ast.walk(tree) for inner in _hints(node)}
    for node in ast.walk(tree):
        if id(node) in hints:
            continue
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            found.append((node, "operator"))
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            found.append((node, "comparison"))
        elif isinstance(node, ast.BoolOp):
            found.append((node, "boolean"))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            found.append((node, "sign"))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            found.append((node, "number"))
        elif isinstance(node, (ast.If, ast.IfExp)):
            found.append((node, "condition"))
    return found


def _hints(node: ast.AST) -> list[ast.AST]:
    """What is inside annotations, and asked of decorators: nothing that a test could see."""
    inside = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    inside += getattr(node, "decorator_list", [])
    return [inner for part in inside if part is not None for inner in ast.walk(part)]


def mutant(tree: ast.Module, number: int) -> tuple[ast.Module, str]:
    """The module with one fault, and what it is."""
    changed = copy.deepcopy(tree)
    node, kind = places(changed)[number]
    before = ast.unparse(node.test if kind == "condition" else node)
    match kind:
        case "operator":
            node.op = SWAPS[type(node.op)]()
        case "comparison":
            node.ops[0] = SWAPS[type(node.ops[0])]()
        case "boolean":
            node.op = SWAPS[type(node.op)]()
        case "sign":
            node.op = ast.UAdd()
        case "number":
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        case "condition":
            node.test = ast.UnaryOp(ast.Not(), node.test)
    after = ast.unparse(node.test if kind == "condition" else node)
    return ast.fix_missing_locations(changed), f"{node.lineno}: {before} -> {after}"


class Faulty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the library with a fault in it."""

    def __init__(self, name: str, code: object) -> None:
        self.name, self.code = name, code

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            return importlib.util.spec_from_loader(name, self)
        return None

    def exec_module(self, module) -> None:
        exec(self.code, module.__dict__)


def survives(name: str, changed: ast.Module) -> bool:
    """Whether all tests of a module pass with the fault in it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    signal.alarm(MOST_SECONDS)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    code = compile(changed, str(SOURCE / f"{name.replace('.', '/')}.py"), "exec")
    sys.meta_path.insert(0, Faulty(f"dsmgp.{name}", code))
    import pytest

    tests = [str(ROOT / "tests" / test) for test in TESTS[name]]
    os._exit(int(pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", *tests])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", default=",".join(TESTS))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    os.chdir(ROOT)
    for heavy in ("torch", "gpytorch", "sklearn", "scipy.stats", "hypothesis", "pandas", "pytest"):
        importlib.import_module(heavy)
    for name in [name for name in sys.modules if name.split(".")[0] == "dsmgp"]:
        del sys.modules[name]  # harness brought it; children import it anew
    path = given.results or results_path("mutants", given.share < 1.0)
    rows, survivors = [], []
    for name in given.modules.split(","):
        tree = ast.parse((SOURCE / f"{name.replace('.', '/')}.py").read_text())
        if not survives(name, tree):
            raise SystemExit(f"the tests of {name} fail without any fault")
        every = range(len(places(tree)))
        chosen = random.Random(given.seed).sample(every, max(1, int(given.share * len(every))))
        left = []
        for number in sorted(chosen):
            changed, what = mutant(tree, number)
            if survives(name, changed):
                left.append(f"{name}.py:{what}")
                print(left[-1], flush=True)
        survivors += left
        rows.append({"module": name, "faults": len(chosen), "survived": len(left),
                     "noticed": 1 - len(left) / len(chosen)})  # fmt: skip
        write_report(path, {"rows": rows, "survivors": survivors, **setting()})
    columns = {"module": "module", "faults": "faults", "survived": "survived", "noticed": "noticed"}
    print(table(columns, rows))


if __name__ == "__main__":
    main()
