"""Roles in docstrings, such as those of classes, shown as plain code: the site has no Sphinx to follow them."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):<code>(~?)([^<]*?)</code>")


def _shown(found: re.Match[str]) -> str:
    name = found[2].split(" &lt;")[0]
    return f"<code>{name.split('.')[-1] if found[1] else name}</code>"


def on_page_content(html: str, **_: Any) -> str:
    return ROLE.sub(_shown, html)
