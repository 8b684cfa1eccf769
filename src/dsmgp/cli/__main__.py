"""Entry point of the command ``dsmgp``, also as ``python -m dsmgp.cli``.

Everything slow is imported inside, so that Ctrl-C during start-up ends with one line.
"""

import os
import sys

__all__ = ["main"]


def main() -> None:
    try:
        try:
            from dsmgp.cli.app import main as run
        except ModuleNotFoundError as error:
            sys.exit(
                f"error: the command line needs {error.name}, which is not installed; pip install 'dsmgp[cli]'"
            )
        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # a half-finished import would print errors at exit


if __name__ == "__main__":
    main()
