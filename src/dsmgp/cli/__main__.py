"""``python -m dsmgp.cli``, where the command ``dsmgp`` is not on the path."""

from dsmgp.cli.app import main

if __name__ == "__main__":
    main()
