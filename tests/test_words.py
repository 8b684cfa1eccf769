"""The words of pages, docstrings, messages and help are the field's own: one term for one thing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What is not written, and what is written instead.
TERMS = {
    r"laws?": "predictive distribution",
    r"length-scales?": "length scale",
    r"hyper[- ]parameters?": "hyperparameter",
    r"twins?": "duplicate inputs",
    r"data[-]?points?": "row, or data point",
    r"changepoints?": "change point",
    r"break ?points?": "change point",
    r"leave one out": "leave-one-out",
    r"model's file": "model file",
    r"honest(?:ly)?": "unbiased, or calibrated",
    r"dear(?:er|est)?": "expensive",
    r"to speak of": "none, or the number",
}
# Also at the beginning of a sentence; neither names of classes nor values in quotes.
FORBIDDEN = {
    re.compile(
        rf"""(?<![\w`./='"-])[{term[0].upper()}{term[0]}]{term[1:]}(?![\w`(='"-]|\.\w)"""
    ): term
    for term in TERMS
}
# The changelog is history.
PAGES = [
    *ROOT.glob("docs/**/*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md")),
    *ROOT.glob("src/**/*.j2"),
]
# Fenced blocks, code spans, targets of links, addresses, expressions of templates, comments; and lines of examples.
CODE = re.compile(
    r"```.*?```|``[^`]*``|`[^`\n]*`|\]\([^)]*\)|https?://\S+|\{[{%#].*?[%}#]\}|<!--.*?-->|^ *(?:>>>|\.\.\.) [^\n]*$",
    re.DOTALL | re.MULTILINE,
)


def prose(text):
    """A text without code, examples and links."""
    return CODE.sub(" ", text)


def faults(text, where):
    return [
        f"{where}: {found[0]!r}; write {TERMS[term]!r}"
        for pattern, term in FORBIDDEN.items()
        for found in pattern.finditer(prose(text))
    ]


def sentences(path):
    """The docstrings, messages and help texts of a module: all strings with blanks."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node


def test_pages_use_our_terms():
    assert len(PAGES) > 30
    wrong = [fault for page in PAGES for fault in faults(page.read_text(), page.relative_to(ROOT))]
    assert not wrong, "\n".join(wrong)


def test_docstrings_and_messages_use_our_terms():
    wrong = [
        fault
        for path in (ROOT / "src").rglob("*.py")
        for node in sentences(path)
        for fault in faults(node.value, f"{path.relative_to(ROOT)}:{node.lineno}")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "n_faults"),
    [
        ("the predictive law of y", 1),
        ("two length-scales", 1),
        ("a Change point", 0),
        ('with `structure="changepoint"`, and ``law``', 0),
        (">>> law = model.predict_dist(X)\n", 0),
        ("[changes](changepoints.md)", 0),
        ("lawful, outlaw", 0),
        ("Dearest of all", 1),
    ],
)
def test_code_is_not_prose(text, n_faults):
    assert len(faults(text, "here")) == n_faults
