"""Leaves in shards: on threads of this process, on disk, or on a Ray cluster."""

from dsmgp.distributed.executor import Executor, LocalExecutor

__all__ = ["Executor", "LocalExecutor"]
