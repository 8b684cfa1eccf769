"""Pieces of an HTML page that needs no network: its style, tables, pictures, numbers and text."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["STYLE", "escaped", "number", "pair", "picture", "table"]

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 62rem;
       margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid #d8dee4; padding-bottom: .3rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p, li { max-width: 44rem; }
.lead { color: #57606a; margin: 0 0 1.5rem; }
nav { font-size: .92rem; } nav a { margin-right: .9rem; color: #0b5394; }
table { border-collapse: collapse; font-size: .93rem; margin: .6rem 0 1rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #eaeef2; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td { white-space: nowrap; } td.text { white-space: normal; }
figure { margin: .8rem 0; } figcaption { color: #57606a; font-size: .9rem; max-width: 44rem; }
img { max-width: 100%; height: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: .5rem 1.5rem; }
.wide { overflow-x: auto; }
pre { background: #f6f8fa; padding: .8rem 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; }
"""


# Letters of a cell that is not broken: a moment, or a name.
SHORT = 24


def picture(draw: Callable[..., Axes], title: str, caption: str, height: float = 3.1) -> str:
    """A figure with its picture inside the page."""
    figure = Figure(figsize=(5.2, height), layout="constrained")
    draw(ax=figure.add_subplot())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    data = base64.b64encode(file.getvalue()).decode()
    return (
        f'<figure><img alt="{escaped(title)}" src="data:image/png;base64,{data}" width="780" '
        f'height="{round(150 * height)}"><figcaption><b>{escaped(title)}.</b> {escaped(caption)}</figcaption></figure>'
    )


def pair(pictures: Sequence[str]) -> str:
    """Pictures beside one another where there is room."""
    return f'<div class="pair">{"".join(pictures)}</div>'


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table with one line of heads, which stand as what is below them does."""
    right = [all(map(_is_number, cells)) for cells in zip(*lines, strict=True)]
    kinds = [' class="number"' if aside else "" for aside in right] or [""] * len(heads)
    top = "".join(
        f"<th{kind}>{escaped(head)}</th>" for head, kind in zip(heads, kinds, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in lines)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(text: str) -> str:
    kind = "number" if _is_number(text) else "text" if len(text) > SHORT else ""
    return f'<td class="{kind}">{escaped(text)}</td>' if kind else f"<td>{escaped(text)}</td>"


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("%").replace(",", ""))
    except ValueError:
        return False
    return True


def number(value: Any) -> str:
    """Five digits; prices and populations in full rather than with an exponent.

    Examples
    --------
    >>> number(0.123456), number(252110.4), number(3e12)
    ('0.12346', '252,110', '3e+12')
    """
    value = float(value)
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e10 else f"{value:.5g}"


def escaped(text: str) -> str:
    return html.escape(str(text))
