"""Imports point one way only, the core needs the core dependencies only, and ``import dsmgp`` loads none yet."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dsmgp"

# Lower layers first. A module may import from layers below its own, or earlier in its own line.
LAYERS = [
    [
        "machine",
        "notices",
        "archive",
        "progress",
        "ragged",
        "tree",
        "distance",
        "triangular",
        "units",
        "validation",
        "breaks",
        "timeline",
        "splits",
        "order",
        "components",
        "effort",
        "sharing",
        "similarity",
        "lbfgs",
    ],
    ["lapack", "chains", "execution", "factors"],
    [
        "fortran",
        "pairwise",
        "compiled",
        "descent",
        "sliding",
        "recursion",
        "columns",
        "partition",
        "grow",
        "routes",
        "stationary",
        "general",
        "segments",
        "prefixes",
        "windows",
        "segmented",
        "segmented_joint",
        "ordered_leaf",
    ],
    ["inference", "mixture", "periods", "process", "thetas", "gate"],
    ["loo", "engine", "batched", "native", "experts", "shared", "live", "conditioned", "online"],
    ["shard", "sharded", "store", "executor", "settings", "checkpoint", "ray_workers", "ray"],
    ["learn", "joint", "scores", "train", "tied", "learn_breaks", "outliers"],
    ["choose", "model", "weigh", "finetune", "breaking"],
    ["fit", "fit_breaks", "parameters", "rows", "summary", "summary_breaks", "updates"],
    [
        "frames",
        "blueprint",
        "flat_tree",
        "stored_factors",
        "stored_families",
        "stored_leaves",
        "stored_search",
        "stored_tree",
        "stored_mixture",
        "stored_breaks",
        "storage",
        "bars",
        "drawn",
        "exact_leaf",
    ],
    ["guard", "changeable", "told", "kept", "predicted"],
    ["tables", "recipe", "stream", "stream_fit", "streamed", "regressor"],
    ["__init__"],
    [
        "datasets",
        "originals",
        "relevance",
        "canvas",
        "structure_plots",
        "plots",
        "page",
        "report_structure",
        "report",
        "botorch",
        "demo",
    ],
    [
        "baselines.estimator",
        "baselines.simple",
        "baselines.division",
        "baselines.committee",
        "baselines.products",
        "baselines.local",
        "baselines.moe",
        "baselines.svgp",
        "baselines.kiss",
        "baselines.__init__",
    ],
    ["reproduce.paper", "reproduce.experiment", "reproduce.runs", "reproduce.data"],
    [
        "reproduce.results",
        "reproduce.timings",
        "reproduce.approximation",
        "reproduce.motorcycle",
        "reproduce.noise",
        "reproduce.contour",
        "reproduce.sharing",
        "reproduce.sizes",
        "reproduce.illustration",
        "reproduce.claims",
    ],
    ["reproduce.runner", "reproduce.__init__", "reproduce.__main__"],
    [
        "cli.__init__",
        "cli.talk",
        "cli.given",
        "cli.fitted",
        "cli.fit",
        "cli.use",
        "cli.judge",
        "cli.app",
        "cli.__main__",
    ],
]
CORE = {"torch", "gpytorch", "sklearn", "numpy", "scipy", "threadpoolctl", "safetensors"}
EDGES = {
    "botorch",
    "page",
    "report_structure",
    "bars",
    "recipe",
    "report",
    "tables",
    "datasets",
    "originals",
    "plots",
    "canvas",
    "structure_plots",
    "demo",
    "compiled",
    "descent",
    "fortran",
    "pairwise",
    "ray",
    "ray_workers",
    "recursion",
    "sliding",
    "stream",
    "stream_fit",
}  # need an extra, and are imported when used
EXTRAS = {"matplotlib", "numba", "ray", "pandas", "typer", "rich"}


def imports_of(path, top_level_only=False):
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in tree.body if top_level_only else ast.walk(tree):
        if id(node) in guarded:
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


def target_of(name):
    """The module that an import of ``dsmgp....`` is from."""
    parts = name.split(".")[1:]
    while parts:
        where = SOURCE.joinpath(*parts)
        if where.with_suffix(".py").exists():
            return ".".join(parts)
        if where.is_dir():
            return ".".join([*parts, "__init__"])
        parts.pop()  # a name inside a module
    return "__init__"


def is_edge(path):
    """Whether a module needs an extra: it is imported when used."""
    return module_of(path) in EDGES or path.parent.name in ("cli", "reproduce")


def rank(module):
    for layer, names in enumerate(LAYERS):
        if module in names:
            return layer, names.index(module)
    raise AssertionError(f"{module} has no place in LAYERS")


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        for name in imports_of(path):
            if name.startswith("dsmgp."):
                target, module = target_of(name), module_of(path)
                assert rank(target) < rank(module), f"{module} imports {target}"


def test_every_module_has_a_place():
    assert {module_of(path) for path in SOURCE.rglob("*.py")} == {
        name for layer in LAYERS for name in layer
    }


def test_the_core_imports_core_dependencies_only():
    for path in SOURCE.rglob("*.py"):
        if is_edge(path):
            continue
        for name in imports_of(path):
            top = name.split(".")[0]
            known = CORE | {"dsmgp"} | sys.stdlib_module_names
            assert top in known, f"{module_of(path)} imports {name}"


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
