"""Training on data that a distributed engine holds, for engines without classes of their own here."""

from onnxsgd.distributed.fit_shards import fit_shards
from onnxsgd.sharding.executor import Executor

__all__ = ["Executor", "fit_shards"]
