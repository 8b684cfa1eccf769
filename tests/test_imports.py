"""Imports between packages point one way, the core needs the core dependencies only, and ``import dsmgp`` is light."""

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dsmgp"

# Packages and top-level modules, lowest first. Each imports only from those before it.
ORDER = [
    "progress",
    "_util",
    "_moved",
    "linalg",
    "tree",
    "data",
    "gp",
    "experts",
    "mixture",
    "scores",
    "distributed",
    "ray",
    "fitting",
    "changepoints",
    "persistence",
    "training_mode",
    "summary",
    "gpytorch_export",
    "plots",
    "regressor",
    "__init__",
    "report",
    "datasets",
    "botorch",
    "demo",
    "baselines",
    "reproduce",
    "cli",
]
CORE = {"torch", "gpytorch", "sklearn", "numpy", "scipy", "threadpoolctl"}
EXTRAS = {"matplotlib", "numba", "ray", "pandas", "typer", "rich"}
# Packages and modules that need an extra, and are imported when used.
NEED_EXTRA = {
    "botorch", "cli", "datasets", "demo", "plots.style", "ray", "report", "reproduce",
    "data.encoding", "data.parquet", "data.tables", "data.predictions", "fitting.dataset",
    "distributed.ray_cluster", "distributed.ray_workers", "_util.progress_bar",
    "linalg.lapack_numba", "tree.routing_numba", "experts.numba_leaf", "experts.numba_leaves",
    "experts.numba_kernels",
    "changepoints.numba_kernels",
}  # fmt: skip


def imports_of(path):
    """Names of all modules and of the names in them that a file imports, but for type checkers only."""
    tree = ast.parse(path.read_text())
    for_type_checkers = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_type_checkers:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            if node.module.split(".")[0] == "dsmgp":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def module_of(path):
    """Its name, without that of the package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def package_of(name):
    """The package or top-level module that a name under ``dsmgp`` belongs to."""
    first = name.split(".")[0]
    is_module = (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").exists()
    return first if is_module else "__init__"


def needs_extra(path):
    module = module_of(path)
    return module in NEED_EXTRA or module.split(".")[0] in NEED_EXTRA


def test_imports_between_packages_point_one_way():
    for path in SOURCE.rglob("*.py"):
        importer = package_of(module_of(path))
        for name in imports_of(path):
            if name.startswith("dsmgp."):
                target = package_of(name.removeprefix("dsmgp."))
                if target != importer and name != "dsmgp.__version__":
                    assert ORDER.index(target) < ORDER.index(importer), (
                        f"{module_of(path)} imports {name}"
                    )


def test_every_package_has_a_place():
    found = {package_of(module_of(path)) for path in SOURCE.rglob("*.py")}
    assert found == set(ORDER)


def test_no_package_imports_the_private_names_of_another():
    for path in SOURCE.rglob("*.py"):
        for name in imports_of(path):
            if name.startswith("dsmgp.") and name != "dsmgp.__version__":
                parts = name.split(".")[1:]
                if name == "dsmgp._moved":
                    continue
                if parts[0] != package_of(module_of(path)):
                    private = [part for part in parts[1:] if part.startswith("_")]
                    assert not private, f"{module_of(path)} imports {name}"


def inner_imports(path):
    """Names that functions of a file import when they are called."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_functions_import_optional_dependencies_only():
    """And the command line whatever it needs, so that it starts quickly: no cycle is hidden in a function."""
    optional = {"matplotlib", "pandas", "polars", "pyarrow", "ray", "rich"}
    for path in SOURCE.rglob("*.py"):
        if package_of(module_of(path)) in ("cli", "demo"):
            continue
        for name in inner_imports(path):
            target = target_module(name.removeprefix("dsmgp."))
            ours = name.startswith("dsmgp.") and needs_extra(
                SOURCE / f"{target.replace('.', '/')}.py"
            )
            assert ours or name.split(".")[0] in optional, (
                f"{module_of(path)} imports {name} inside"
            )


def target_module(name):
    """The module that a dotted name is, or is in."""
    parts = name.split(".")
    while parts and not SOURCE.joinpath(*parts).with_suffix(".py").exists():
        if SOURCE.joinpath(*parts).is_dir():
            return ".".join([*parts, "__init__"])
        parts.pop()
    return ".".join(parts) or "__init__"


def test_no_modules_import_one_another_in_a_circle():
    graph = {
        module_of(path): {
            target_module(name.removeprefix("dsmgp."))
            for name in imports_of(path)
            if name.startswith("dsmgp.")
        }
        for path in SOURCE.rglob("*.py")
        if module_of(path) != "__init__"
    }
    while graph:
        free = [
            module for module, targets in graph.items() if not targets & graph.keys() - {module}
        ]
        assert free, f"a circle of imports among {sorted(graph)}"
        for module in free:
            del graph[module]


def test_the_core_imports_core_dependencies_only():
    known = CORE | {"dsmgp"} | sys.stdlib_module_names
    for path in SOURCE.rglob("*.py"):
        if not needs_extra(path):
            for name in imports_of(path):
                assert name.split(".")[0] in known, f"{module_of(path)} imports {name}"


def loaded(statement):
    """Packages that a fresh interpreter loads for a statement, but for those it starts with."""
    code = f"import sys; old = set(sys.modules); {statement}; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_dsmgp_loads_nothing_heavy():
    assert not loaded("import dsmgp; dir(dsmgp)") & (CORE | EXTRAS)


def test_the_regressor_brings_in_no_extra():
    ours = loaded("from dsmgp import DSMGPRegressor") & EXTRAS
    assert ours <= loaded("import torch, gpytorch, sklearn.base")


def test_public_names_are_there_when_asked_for():
    import dsmgp

    assert set(dsmgp.__all__) <= set(dir(dsmgp))
    assert loaded(f"from dsmgp import *; {', '.join(dsmgp.__all__)}") >= {"torch", "sklearn"}
    with pytest.raises(AttributeError, match="has no attribute 'regression'"):
        _ = dsmgp.regression


def test_modules_are_there_whatever_was_imported_before():
    code = "import dsmgp; dsmgp.tree.Leaf; assert not hasattr(dsmgp, 'nothing')"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("archive", "ModelFileError"),
        ("breaks", "BreakingLeaf"),
        ("breaks", "ChangePoints"),
        ("executor", "Executor"),
        ("notices", "FactorisationWarning"),
        ("splits", "ChangePoint"),
        ("splits", "Splits"),
    ],
)
def test_former_module_paths_still_import_with_a_warning(former, name):
    sys.modules.pop(f"dsmgp.{former}", None)
    with pytest.warns(DeprecationWarning, match="has moved: import from dsmgp"):
        exec(f"from dsmgp.{former} import {name}", found := {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = __import__(f"dsmgp.{former}", fromlist=[name])
    assert found[name] is getattr(module, name)
