"""What a real browser finds on a page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def opened(pages, *options, picture=None):
    """Open files or local addresses in Chromium; return what it finds on each page at each width.

    ``options`` are those of ``chromium.py``, such as ``"--widths", "900"``; ``picture`` is where it leaves pictures. Where Qt's Chromium
    cannot be loaded the test is skipped, unless ``DSMGP_BROWSER=required`` is set, as CI does.
    """
    try:
        import PyQt6.QtWebEngineCore  # noqa: F401
    except ImportError as error:
        remedy = "install dsmgp[browser], and the system library that it names"
        if os.environ.get("DSMGP_BROWSER") == "required":
            pytest.fail(f"no browser: {error}; {remedy}")
        pytest.skip(f"no browser: {error}; {remedy}")
    script = Path(__file__).with_name("chromium.py")
    pages = [pages] if isinstance(pages, str | Path) else pages
    command = [sys.executable, script, *options, *(["--picture", picture] if picture else [])]
    done = subprocess.run([*command, "--", *pages], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
