"""The paper's experiments, each as one call or one command. Needs ``dsmgp[data,plots]``, and ``table-results`` ``dsmgp[torch]`` too.

    python -m dsmgp.reproduce figure-illustration --quick

>>> from dsmgp.reproduce import NAMES
>>> "table-results" in NAMES
True
"""

from dsmgp.reproduce.runner import NAMES, reproduce, reproduce_all

__all__ = ["NAMES", "reproduce", "reproduce_all"]
