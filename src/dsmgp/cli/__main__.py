"""Where the command ``dsmgp`` begins, also as ``python -m dsmgp.cli``: Ctrl-C is answered from here on.

Nothing is imported above that takes time.
"""

import os
import sys

__all__ = ["main"]


def main() -> None:
    try:
        from dsmgp.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # what was being imported is half there, and would complain


if __name__ == "__main__":
    main()
