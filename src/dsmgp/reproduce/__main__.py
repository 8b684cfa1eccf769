"""``python -m dsmgp.reproduce NAME``, with ``all`` for every experiment."""

from __future__ import annotations

import argparse
import sys

from dsmgp.reproduce.runner import NAMES, reproduce, reproduce_all


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dsmgp.reproduce", description=__doc__)
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument("--out", default="out/reproduction", help="folder for results")
    parser.add_argument("--quick", action="store_true", help="a small form, about 30 seconds")
    parser.add_argument("--seeds", type=int, help="reruns")
    parser.add_argument("--data", nargs="+", help="only these data sets")
    parser.add_argument("--again", action="store_true", help="run what is there already")
    asked = parser.parse_args()

    def progress(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    try:
        if asked.name == "all":
            if asked.data is not None:
                parser.error("--data goes with one experiment, not with all of them")
            paths = reproduce_all(asked.out, asked.quick, asked.seeds, asked.again, progress)
        else:
            paths = reproduce(
                asked.name, asked.out, asked.quick, asked.seeds, asked.data, asked.again, progress
            )
    except KeyboardInterrupt:
        print("interrupted; what was run is kept, and the same command goes on", file=sys.stderr)
        sys.exit(130)
    except (OSError, NotImplementedError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
