"""Imports between packages point one way, the core needs the core dependencies only, and ``import dsmgp`` is light."""

import ast
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from tests.support.missing_extras import NEED_EXTRA

SOURCE = Path(__file__).parents[1] / "src" / "dsmgp"
SAMPLE = Path(__file__).parent / "data" / "format-1.dsmgp"

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
    "explain",
    "distributed",
    "ray",
    "fitting",
    "changepoints",
    "model_kinds",
    "persistence",
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
CORE = {"numba", "numpy", "scipy", "sklearn", "threadpoolctl"}
# Dependencies that only extras bring. Modules of the core import them inside functions.
OPTIONAL = {
    "botorch", "fsspec", "gpytorch", "jinja2", "linear_operator", "matplotlib", "pandas", "polars", "pyarrow",
    "ray", "rich", "torch", "typer",
}  # fmt: skip
# Compiled code. Numba is a core dependency, but it takes long to import and may be missing or broken on a machine.
COMPILED = {
    "_util.numba_arrays", "changepoints.numba_kernels", "experts.backends.numba_entries", "experts.backends.numba_kernels",
    "experts.backends.numba_leaf", "experts.backends.numba_rows", "linalg.lapack_numba", "tree.routing_numba",
}  # fmt: skip
# Modules of core dependencies that are slow to import and rarely used.
SLOW = {"scipy.signal"}
# What neither ``import dsmgp.regressor`` nor the start of the command line may load.
HEAVY = OPTIONAL - {"rich", "typer"} | {"llvmlite", "numba"}


def imports_of(path, inside_functions=True, for_types=False):
    """Names of all modules and of the names in them that a file imports; those for type checkers only ``for_types``."""
    tree = ast.parse(path.read_text())
    in_functions = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
    }
    for_type_checkers = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if (id(node) in for_type_checkers and not for_types) or (
            not inside_functions and id(node) in in_functions
        ):
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


def is_in(modules, module):
    """Whether a module, or the package that it is in, is listed."""
    return module in modules or module.split(".")[0] in modules


def is_imported_late(module):
    return is_in(COMPILED.union(*NEED_EXTRA.values()), module)


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


def test_functions_import_only_what_is_optional_or_slow():
    """And the command line whatever it needs, so that it starts quickly: no cycle is hidden in a function."""
    for path in SOURCE.rglob("*.py"):
        if package_of(module_of(path)) in ("cli", "demo"):
            continue
        for name in inner_imports(path):
            if name.startswith("dsmgp."):
                allowed = is_imported_late(target_module(name.removeprefix("dsmgp.")))
            else:
                allowed = (
                    name.split(".")[0] in OPTIONAL | {"llvmlite", "numba"}
                    or name.rpartition(".")[0] in SLOW
                )
            assert allowed, f"{module_of(path)} imports {name} inside"


def target_module(name):
    """The module that a dotted name is, or is in."""
    parts = name.split(".")
    while parts and not SOURCE.joinpath(*parts).with_suffix(".py").exists():
        if SOURCE.joinpath(*parts).is_dir():
            return ".".join([*parts, "__init__"])
        parts.pop()
    return ".".join(parts) or "__init__"


def import_graph(node_of, for_types=False):
    """For every node, to which ``node_of`` assigns a module, the others that its modules import."""
    graph = {}
    for path in SOURCE.rglob("*.py"):
        if module_of(path) != "__init__":
            names = (
                name.removeprefix("dsmgp.")
                for name in imports_of(path, for_types=for_types)
                if name.startswith("dsmgp.")
            )
            graph.setdefault(node_of(module_of(path)), set()).update(
                node_of(target_module(name)) for name in names
            )
    return graph


def assert_no_circle(graph):
    while graph:
        free = [node for node, targets in graph.items() if not targets & graph.keys() - {node}]
        assert free, f"a circle of imports among {sorted(graph)}"
        for node in free:
            del graph[node]


def test_no_modules_import_one_another_in_a_circle():
    assert_no_circle(import_graph(lambda module: module))


def test_types_close_no_further_circles():
    """An annotation that needs an import back shows that two modules know each other: this list is to become shorter."""
    runtime = import_graph(lambda module: module)
    graph = import_graph(lambda module: module, for_types=True)

    def reached(start):
        found, waiting = set(), [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    back = {
        (module, target)
        for module, targets in graph.items()
        for target in targets - runtime[module] - {module}
        if module in reached(target)
    }
    plots = ("calibration", "kernels", "predictive", "relevance", "structure", "style")
    assert back == {(f"plots.{name}", "regressor") for name in plots} | {
        ("experts.backends.interface", "experts.backends.numba_backend"),
        ("experts.backends.shared_backend", "experts.leaf_gps"),
        ("experts.conditioning", "experts.leaf_gps"),
        ("experts.interface", "experts.online.posterior"),
        ("experts.interface", "experts.posterior"),
        ("experts.leaf_bases", "experts.posterior"),
        ("experts.posterior", "experts.leaf_gps"),
        ("experts.row_table", "experts.posterior"),
        ("gp.gpytorch_kernels", "gp.kernels"),
        ("gp.transforms.spline_moments", "gp.transforms.output_warp"),
        ("mixture.predictive.predictive_distribution", "mixture.predictive.distribution"),
        ("persistence.gpytorch.modules", "persistence.processes"),
        ("report.importance", "report.evaluation"),
    }


@pytest.mark.parametrize(
    "package", ["data", "experts", "fitting", "gp", "mixture", "persistence", "reproduce"]
)
def test_no_subpackages_import_one_another_in_a_circle(package):
    """A subpackage counts as one module beside the modules of its package."""

    def node_of(module):
        first, *rest = module.split(".")
        is_subpackage = len(rest) > 1 and (SOURCE / first / rest[0]).is_dir()
        return f"{first}.{rest[0]}" if is_subpackage else module

    graph = import_graph(node_of)
    assert_no_circle(
        {node: targets for node, targets in graph.items() if node.split(".")[0] == package}
    )


def test_the_core_imports_core_dependencies_only():
    """Others inside functions, where they are needed; and numba in compiled code only."""
    for path in SOURCE.rglob("*.py"):
        module = module_of(path)
        known = CORE - {"numba"} | {"dsmgp"} | sys.stdlib_module_names
        known |= {"llvmlite", "numba"} if module in COMPILED else set()
        if module in COMPILED or not is_imported_late(module):
            for name in imports_of(path, inside_functions=False):
                assert name.split(".")[0] in known, f"{module} imports {name}"


def test_no_module_imports_one_that_needs_more_than_itself():
    """Outside of functions; of what needs torch nothing is imported before it is used, not even by ``cli`` or ``reproduce``."""
    for path in SOURCE.rglob("*.py"):
        module = module_of(path)
        needs_torch = is_in(NEED_EXTRA["torch"] | NEED_EXTRA["botorch"], module)
        for name in imports_of(path, inside_functions=False):
            if not name.startswith("dsmgp."):
                assert needs_torch or name.split(".")[0] not in ("torch", "gpytorch"), module
                continue
            target = target_module(name.removeprefix("dsmgp."))
            if not is_imported_late(module):
                assert not is_imported_late(target), f"{module} imports {name}"
            if not needs_torch:
                assert not is_in(NEED_EXTRA["torch"], target), f"{module} imports {name}"


def test_modules_that_are_imported_late_exist():
    found = {module_of(path) for path in SOURCE.rglob("*.py")}
    found |= {module.removesuffix(".__init__") for module in found}
    assert COMPILED.union(*NEED_EXTRA.values()) <= found


def test_the_core_is_what_the_package_depends_on():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert {"sklearn" if name == "scikit-learn" else name for name in names} == CORE
    assert NEED_EXTRA.keys() <= project["optional-dependencies"].keys()


def loaded(statement):
    """Packages that a fresh interpreter loads for a statement, but for those it starts with."""
    code = f"import sys; old = set(sys.modules); {statement}\nprint(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_dsmgp_loads_nothing_heavy():
    assert not loaded("import dsmgp; dir(dsmgp)") & (CORE | OPTIONAL)


def test_the_regressor_loads_nothing_heavy():
    """But for pandas and pyarrow, which ``import sklearn.base`` loads where they are installed."""
    alone = loaded("import sklearn.base") & {"pandas", "pyarrow"}
    assert not loaded("from dsmgp import DSMGPRegressor") & HEAVY - alone


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["info", SAMPLE]])
def test_the_command_line_starts_without_anything_heavy(arguments):
    pytest.importorskip("typer")
    statement = (
        f"sys.argv = {['dsmgp', *map(str, arguments)]}; from dsmgp.cli.__main__ import main\n"
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()\n"
    )
    found = loaded(statement)
    assert "typer" in found
    assert not found & (HEAVY | {"scipy", "sklearn"})


def test_public_names_are_there_when_asked_for():
    import dsmgp

    assert set(dsmgp.__all__) <= set(dir(dsmgp))
    assert "sklearn" in loaded(f"from dsmgp import *; {', '.join(dsmgp.__all__)}")
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


def test_no_folder_has_to_be_scrolled():
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 15, (
            folder
        )
