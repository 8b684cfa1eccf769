"""``python -m dsmgp.reproduce NAME``, with ``all`` for every experiment."""

from __future__ import annotations

import argparse
import sys

from dsmgp.reproduce.runner import NAMES, reproduce, reproduce_all


def main() -> None:
    """Parse the arguments, run the experiments and print the paths of what was written."""
    parser = argparse.ArgumentParser(prog="python -m dsmgp.reproduce", description=__doc__)
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument("--out", default="out/reproduction", help="folder for results")
    parser.add_argument("--quick", action="store_true", help="a small version, about 30 seconds")
    parser.add_argument("--seeds", type=int, help="number of repetitions")
    parser.add_argument("--data", nargs="+", help="only these data sets")
    parser.add_argument("--again", action="store_true", help="run jobs again that have results")
    arguments = parser.parse_args()

    def progress(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    try:
        if arguments.name == "all":
            if arguments.data is not None:
                parser.error("--data goes with one experiment, not with all of them")
            paths = reproduce_all(
                arguments.out, arguments.quick, arguments.seeds, arguments.again, progress
            )
        else:
            paths = reproduce(
                arguments.name,
                arguments.out,
                arguments.quick,
                arguments.seeds,
                arguments.data,
                arguments.again,
                progress,
            )
    except KeyboardInterrupt:
        print(
            "interrupted; results so far are kept, and the same command continues", file=sys.stderr
        )
        sys.exit(130)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
