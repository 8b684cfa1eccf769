"""What the site makes of pages: roles in docstrings, such as those of classes, become plain code, as there is no Sphinx to follow them;
wide figures are marked, as phones have to show them in another way."""

from __future__ import annotations

import re
import struct
from os.path import normpath
from pathlib import Path
from typing import Any

WIDE = 2.0  # width over height
PICTURE = re.compile(r'<img (alt="[^"]*" src="([^"]+\.png)")')
ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):<code>(~?)([^<]*?)</code>")


def _shown(found: re.Match[str]) -> str:
    name = found[2].split(" &lt;")[0]
    return f"<code>{name.split('.')[-1] if found[1] else name}</code>"


def _is_wide(file: Path) -> bool:
    """Whether a PNG file is much wider than high, by its header."""
    width, height = struct.unpack(">II", file.read_bytes()[16:24])
    return bool(width > WIDE * height)


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    place = Path(config["docs_dir"], page.file.dest_uri).parent  # may not exist: as the link counts

    def marked(found: re.Match[str]) -> str:
        wide = _is_wide(Path(normpath(place / found[2])))
        return f'<img class="wide" {found[1]}' if wide else found[0]

    return PICTURE.sub(marked, ROLE.sub(_shown, html))
