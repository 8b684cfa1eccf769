"""Draw the packages of dsmgp and which of them import which, from the imports in the sources.

    python docs/images/packages.py [--check]

Writes docs/images/packages.svg. An arrow points from a package to one that it imports; arrows that follow from others
are left out, and so is ``_util``, which all of them import. ``--check`` only says whether the picture is up to date.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "dsmgp"
PICTURE = Path(__file__).with_suffix(".svg")
# Imported nearly everywhere: their arrows would hide the others.
LEFT_OUT = {"_util", "_moved", "__init__", "progress"}
# Top-level modules that are drawn as part of another box.
PART_OF = {
    "demo": "cli",
    "gpytorch_export": "regressor",
    "model_kinds": "regressor",
    "ray": "distributed",
    "summary": "regressor",
}
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 50, 26, 40, 16
STYLE = """
  text { font-family: system-ui, sans-serif; fill: #1f2937; }
  .name { font-size: 14px; font-weight: 600; }
  .purpose { font-size: 10px; fill: #4b5563; }
  rect { fill: #eef2ff; stroke: #6366f1; rx: 6; }
  path { stroke: #9ca3af; stroke-width: 1.3; fill: none; marker-end: url(#head); }
"""


def package_of(module: str) -> str:
    """The package or top-level module that a dotted name under ``dsmgp`` belongs to."""
    first = module.split(".")[0]
    exists = (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").exists()
    return PART_OF.get(first, first) if exists else "__init__"


def imports(path: Path) -> set[str]:
    """Packages that a file imports, but for those that only type checkers need."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in guarded:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import) and id(node) not in guarded:
            names += [alias.name for alias in node.names]
    ours = [name.removeprefix("dsmgp.") for name in names if name.startswith("dsmgp.")]
    # ``from dsmgp import DSMGPRegressor`` is an import of the regressor.
    found = {package_of(name) for name in ours}
    return {"regressor" if name == "__init__" else name for name in found}


def import_graph() -> dict[str, set[str]]:
    """For every package the packages that it imports."""
    graph: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        package = package_of(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        if package not in LEFT_OUT:
            graph.setdefault(package, set()).update(imports(path) - LEFT_OUT - {package})
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything that a package imports, directly or not."""
    seen: set[str] = set()
    stack = list(graph[start])
    while stack:
        package = stack.pop()
        if package not in seen:
            seen.add(package)
            stack += graph[package]
    return seen


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that follow from others."""
    below = {package: reachable(graph, package) for package in graph}
    return {
        package: {t for t in targets if not any(t in below[other] for other in targets)}
        for package, targets in graph.items()
    }


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    """Packages by the length of the longest chain of imports that leads to them, the highest first."""
    importers = {package: {p for p in graph if package in graph[p]} for package in graph}
    depth: dict[str, int] = {}

    def depth_of(package: str) -> int:
        if package not in depth:
            depth[package] = 1 + max((depth_of(p) for p in importers[package]), default=-1)
        return depth[package]

    for package in graph:
        depth_of(package)
    return [
        sorted(package for package in graph if depth[package] == level)
        for level in range(max(depth.values()) + 1)
    ]


def purpose(package: str) -> list[str]:
    """The first sentence of a package's docstring, up to its colon or full stop, in lines."""
    path = SOURCE / package / "__init__.py"
    path = path if path.exists() else SOURCE / f"{package}.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = (
        text.split("\n\n")[0]
        .replace("\n", " ")
        .replace("``", "")
        .split(". ")[0]
        .split(": ")[0]
        .rstrip(".")
    )
    return textwrap.wrap(first, 33, max_lines=2, placeholder=" ...")


def svg() -> str:
    graph = reduced(import_graph())
    rows = layers(graph)
    widest = max(map(len, rows))
    width = 2 * MARGIN + widest * BOX_WIDTH + (widest - 1) * GAP_X
    height = 2 * MARGIN + len(rows) * BOX_HEIGHT + (len(rows) - 1) * GAP_Y
    corner: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        used = len(row) * BOX_WIDTH + (len(row) - 1) * GAP_X
        for place, package in enumerate(row):
            x = (width - used) / 2 + place * (BOX_WIDTH + GAP_X)
            corner[package] = (x, MARGIN + level * (BOX_HEIGHT + GAP_Y))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
        "<title>The packages of dsmgp and their imports</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" style="fill: #9ca3af; stroke: none"/></marker></defs>',
    ]
    for package, targets in sorted(graph.items()):
        x, y = corner[package]
        for target in sorted(targets):
            to_x, to_y = corner[target]
            start, end = (x + BOX_WIDTH / 2, y + BOX_HEIGHT), (to_x + BOX_WIDTH / 2, to_y - 2)
            bend = (end[1] - start[1]) / 2
            lines.append(
                f'<path d="M{start[0]:g} {start[1]:g} C{start[0]:g} {start[1] + bend:g} '
                f'{end[0]:g} {end[1] - bend:g} {end[0]:g} {end[1]:g}"/>'
            )
    for package, (x, y) in sorted(corner.items()):
        lines.append(f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>')
        lines.append(f'<text class="name" x="{x + 9:g}" y="{y + 18:g}">{package}</text>')
        lines += [
            f'<text class="purpose" x="{x + 9:g}" y="{y + 32 + 11 * k:g}">{escape(line)}</text>'
            for k, line in enumerate(purpose(package))
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    current = PICTURE.exists() and PICTURE.read_text() == svg()
    if not current and not check:
        PICTURE.write_text(svg())
    if check and not current:
        sys.exit(f"{PICTURE.relative_to(ROOT)} is out of date: python {sys.argv[0]} draws it anew")


if __name__ == "__main__":
    main()
