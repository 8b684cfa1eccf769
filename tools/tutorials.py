"""Run the tutorials, and make notebooks of them: ``python tools/tutorials.py [--write] docs/tutorials/NAME.md ...``

A tutorial is a Markdown page. Its Python blocks are run in order; the text block after each must be what it prints, and the images
after it are the figures it leaves open. ``--write`` puts outputs and figures there. As a hook of MkDocs, this module makes a notebook
of every tutorial, with these outputs, and links it from the page.
"""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

# A Python block, what it prints, and its figures.
STEP = re.compile(
    r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?(?P<figures>(?:\n!\[[^\]]*\]\([^)]+\)\n)*)",
    re.DOTALL,
)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


class Step(NamedTuple):
    """A Python block with its line on the page and the Markdown before it, what the page says it prints, and the files of its figures."""

    line: int
    before: str
    code: str
    printed: str
    figures: list[tuple[str, str]]


def steps(text: str) -> Iterator[Step]:
    """Yield the steps of a page; the last has the Markdown after the last block, and no code."""
    end = 0
    for found in STEP.finditer(text):
        figures = IMAGE.findall(found["figures"])
        line = text.count("\n", 0, found.start()) + 1
        yield Step(line, text[end : found.start()], found["code"], found["printed"] or "", figures)
        end = found.end()
    yield Step(text.count("\n"), text[end:], "", "", [])


def same(printed: str, expected: str) -> bool:
    """Return whether two outputs agree but for the last digits of numbers, which differ between machines."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", expected):
        return False
    for new, old in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        digits = len(old.split("e")[0].partition(".")[2])
        x, y = (float(number.replace(",", "")) for number in (new, old))
        if abs(x - y) > max(0.1 * abs(y), 2.5 * 10.0**-digits):
            return False
    return True


def run(page: Path, write: bool) -> bool:
    """Run a page; return whether it prints what it says."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from dsmgp.plots.style import styled

    warnings.simplefilter("error")
    warnings.simplefilter("ignore", DeprecationWarning)  # inside other packages
    names: dict[str, Any] = {"__name__": "__main__"}
    out, right = "", True
    with styled():
        for step in steps(page.read_text()):
            out += step.before
            if not step.code:
                break
            stdout = io.StringIO()
            with redirect_stdout(stdout):
                exec(compile("\n" * step.line + step.code, str(page), "exec"), names)
            figures = [plt.figure(number) for number in plt.get_fignums()]
            if len(figures) != len(step.figures):
                raise ValueError(
                    f"{page}: {len(figures)} figures, {len(step.figures)} images after\n{step.code}"
                )
            if not same(stdout.getvalue(), step.printed):
                right = False
                print(
                    f"{page} prints\n{stdout.getvalue()}instead of\n{step.printed}", file=sys.stderr
                )
            out += f"```python\n{step.code}```\n"
            out += f"\n```text\n{stdout.getvalue()}```\n" if stdout.getvalue() else ""
            for figure, (alt, file) in zip(figures, step.figures, strict=True):
                out += f"\n![{alt}]({file})\n"
                if write:
                    figure.savefig(page.parent / file, dpi=120)
            plt.close("all")
    if write:
        page.write_text(out)
    return right or write


def notebook(page: Path) -> str:
    """Return the page as a Jupyter notebook with its outputs."""
    cells: list[dict[str, Any]] = []
    for step in steps(page.read_text()):
        if step.before.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": step.before.strip()})
        if not step.code:
            break
        outputs: list[dict[str, Any]] = []
        if step.printed:
            outputs.append({"output_type": "stream", "name": "stdout", "text": step.printed})
        for alt, file in step.figures:
            image = base64.b64encode((page.parent / file).read_bytes()).decode()
            data = {"image/png": image, "text/plain": alt}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        cells.append(
            {
                "cell_type": "code", "execution_count": None, "metadata": {},
                "source": step.code.rstrip(), "outputs": outputs,
            }
        )  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for k, cell in enumerate(cells):
        cell["id"] = f"cell-{k}"
    content = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": kernel},
        "cells": cells,
    }
    return json.dumps(content, indent=1)


def on_files(files: Any, config: Any) -> Any:
    """Add the notebooks to the site."""
    from mkdocs.structure.files import File

    for page in sorted(Path(config["docs_dir"], "tutorials").glob("*.md")):
        uri = f"tutorials/{page.stem}.ipynb"
        files.append(File.generated(config, uri, content=notebook(page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the notebook of a tutorial below its title."""
    uri = page.file.src_uri
    if not uri.startswith("tutorials/"):
        return markdown
    title, rest = markdown.split("\n", 1)
    return f"{title}\n\n[:material-download: Download as a notebook]({Path(uri).stem}.ipynb){{ .md-button }}\n{rest}"


if __name__ == "__main__":
    pages = [Path(argument) for argument in sys.argv[1:] if argument != "--write"]
    results = [run(page, "--write" in sys.argv) for page in pages]
    sys.exit(not all(results))
