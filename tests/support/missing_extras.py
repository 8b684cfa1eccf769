"""Modules that need an extra; as a plugin of pytest (``-p tests.support.missing_extras``): leave out those whose extra is missing.

Without the plugin their doctests are errors, as they should be in an environment that has all extras.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

# Packages and modules of dsmgp by the extra that they need. They are imported when they are used.
NEED_EXTRA = {
    "botorch": {"botorch"},
    "cli": {"_util.progress_bar", "cli"},
    "data": {
        "data.columns.arrow_values", "data.parquet.files", "data.parquet.dataset", "data.parquet.sink", "data.parquet.parts", "data.parquet.upload", "data.parquet.conditions", "data.parquet.row_reader", "data.files.tables", "data.files.text_dates",
        "data.files.text_column", "data.files.text_files", "data.files.text_numbers", "data.files.text_values", "datasets", "fitting.datasets.fit", "fitting.datasets.predict", "fitting.datasets.updates",
    },
    "plots": {"demo", "report", "reproduce"},
    "ray": {"distributed.ray_actor", "distributed.ray_cluster", "distributed.ray_workers", "ray"},
    "torch": {
        "baselines.kiss", "baselines.svgp", "experts.backends.torch_backend", "experts.backends.torch_batch", "gp.gpytorch_kernels",
        "gp.gpytorch_leaf_kernel", "gp.gpytorch_process", "gp.torch_kernels", "gpytorch_export", "linalg.tensors",
        "linalg.triangular", "persistence.gpytorch.modules",
    },
}  # fmt: skip
# A package that only the extra brings.
PACKAGE = {
    "botorch": "botorch", "cli": "typer", "data": "pyarrow", "plots": "matplotlib", "ray": "ray",
    "torch": "gpytorch",
}  # fmt: skip


def missing_extras() -> list[str]:
    return [extra for extra, package in PACKAGE.items() if find_spec(package) is None]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    parts = collection_path.with_suffix("").parts
    if "dsmgp" not in parts or collection_path.suffix != ".py":
        return None
    inside = parts[len(parts) - parts[::-1].index("dsmgp") :]
    names = {".".join(inside), ".".join(inside[:1])}
    return any(names & NEED_EXTRA[extra] for extra in missing_extras()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip doctests of other modules whose examples import what is missing."""
    extras = missing_extras()
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            code = "".join(example.source for example in item.dtest.examples)
            imported = " ".join(re.findall(r"^(?:import|from) (.*)", code, re.MULTILINE))
            needed = [
                extra for extra in extras if re.search(rf"\b({extra}|{PACKAGE[extra]})\b", imported)
            ]
            if needed:
                item.add_marker(pytest.mark.skip(reason=f"needs dsmgp[{needed[0]}]"))
