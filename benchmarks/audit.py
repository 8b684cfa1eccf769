"""Known vulnerabilities of the pinned dependencies, where the public database of them can be reached.

    python benchmarks/audit.py

Asks pip-audit, which has to be installed. Ends with an error only where a vulnerability is known; where nothing could be looked up it
says so, and that is all.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

PINNED = Path(__file__).parents[1] / "constraints.txt"


def main() -> None:
    if importlib.util.find_spec("pip_audit") is None:
        print("pip-audit is not installed; nothing was audited")
        return
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "-f", "json"]
    done = subprocess.run([*command, "-r", PINNED], capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        print(
            f"the database of vulnerabilities cannot be reached from here ({said}); nothing was audited"
        )
        return
    audited = [each for each in found if "skip_reason" not in each]
    for each in audited:
        for known in each["vulns"]:
            print(
                f"{each['name']} {each['version']}: {known['id']}, mended in {known['fix_versions']}"
            )
    if not audited:
        print("the database of vulnerabilities cannot be reached from here; nothing was audited")
    print(f"{len(audited)} of {len(found)} pinned dependencies were audited")
    if any(each["vulns"] for each in audited):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
