"""An executor of ``onnxsgd.distributed.fit_shards`` over the tasks of Ray."""

import sys
import time

import ray
from ray.exceptions import GetTimeoutError, RayTaskError

from onnxsgd.exceptions import WorkersLostError

# Workers need no copy of this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Result:
    """The handle of a result; a released one holds no reference."""

    def __init__(self, ref):
        self.ref = ref


@ray.remote(max_retries=-1)
def call(function, *arguments):
    """Run a task."""
    return function(*arguments)


class RayExecutor:
    """Run tasks on the cluster that ``ray.init`` connected; wait for its CPUs for `timeout` seconds."""

    def __init__(self, timeout=60.0):
        self.timeout = timeout

    def source(self, value):
        """Put a value into the object store."""
        return Result(ray.put(value))

    def submit(self, function, *arguments):
        """Start a task, whose arguments may be handles, or references of Ray."""
        found = [a.ref if isinstance(a, Result) else a for a in arguments]
        return Result(call.remote(function, *found))

    def release(self, handles):
        """Let Ray forget results; it counts references, and tasks that wait hold theirs."""
        for handle in handles:
            handle.ref = None

    def results(self, handles):
        """Return results, in their order; raise the errors of tasks as they were raised there."""
        refs, seen = [handle.ref for handle in handles], time.monotonic()
        while True:
            try:
                return ray.get(refs, timeout=min(1.0, self.timeout))
            except GetTimeoutError:
                if ray.cluster_resources().get("CPU"):
                    seen = time.monotonic()
                if time.monotonic() - seen >= self.timeout:
                    raise WorkersLostError(f"Ray has had no CPU for {self.timeout:g} seconds.") from None
            except RayTaskError as error:
                cause = error
                while isinstance(cause, RayTaskError) and isinstance(cause.cause, Exception):
                    cause = cause.cause
                raise cause from error
