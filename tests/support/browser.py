"""What a real browser finds on a page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def opened(page, picture, *arguments):
    """Open a file or a local address in Chromium; return what it finds at each width, and leave pictures.

    ``arguments`` are widths in pixels, and the words that ``chromium.py`` knows.
    """
    pytest.importorskip("PyQt6.QtWebEngineCore", exc_type=ImportError)
    script = Path(__file__).with_name("chromium.py")
    command = [sys.executable, script, page, picture, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
