"""An executor of ``onnxsgd.distributed.fit_shards`` over the partitions of a DataFrame of Spark."""

import itertools
import pickle
import sys
import uuid

import pandas as pd
from pyspark import TaskContext, cloudpickle
from pyspark.sql.functions import spark_partition_id

from onnxsgd.exceptions import ParameterError

# Workers need no copy of this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
#: The partition of tasks that need results of several.
DRIVER = -1


class Node:
    """The handle of a task, which runs once its result is needed; it depends on the rows of `partition`."""

    def __init__(self, key, partition, function, *arguments):
        self.key, self.partition, self.function, self.arguments = key, partition, function, arguments


class SparkExecutor:
    """Run tasks in the partitions of a DataFrame; ``piece(rows)`` makes (X, y) of a frame of pandas."""

    def __init__(self, frame, piece):
        self.frame, self.piece, self.empty = frame.persist(), piece, frame.limit(0).toPandas()
        self.name, self.keys, self.live, self.found = uuid.uuid4().hex, itertools.count(), set(), {}
        self.pieces = [self._node(number, None) for number in sorted(self._job({}, {}))]

    def source(self, value):
        """Keep a value, pickled once for all rounds."""
        return self._node(None, pickle.loads, pickle.dumps(value))

    def submit(self, function, *arguments):
        """Note a task, whose arguments may be handles."""
        partitions = {a.partition for a in arguments if isinstance(a, Node)} - {None}
        if len(partitions) > 1 and function.__name__ != "add_changes":
            raise ParameterError(
                "A shard needs rows of several partitions of the DataFrame: their targets differ, or "
                "n_shards is not their number. Shuffle the rows before, by frame.repartition(n), and leave "
                "n_shards None; or give sync_every=1."
            )
        return self._node(
            DRIVER if len(partitions) > 1 else next(iter(partitions), None), function, *arguments
        )

    def release(self, handles):
        """Forget results here now, and on the workers in the next round."""
        for handle in handles:
            self.live.discard(handle.key)
            self.found.pop(handle.key, None)

    def results(self, handles):
        """Return results, in their order."""
        tasks, sources, wanted = {}, {}, {}
        for node in self._of_partitions(handles):
            wanted.setdefault(node.partition, []).append(node.key)
            self._add(node, tasks.setdefault(node.partition, {}), sources)
        parts = {number: cloudpickle.dumps((tasks[number], keys)) for number, keys in wanted.items()}
        # without rows at first: most workers keep the shards that they made of them
        for has_rows in (False, True):
            done = self._job(parts, sources, rows_of=list(parts) if has_rows else []) if parts else {}
            for number in sorted(number for number in parts if done[number] is not None):
                results, error = pickle.loads(done[number])
                if error is not None:
                    raise error
                self.found.update(results)
                del parts[number]
        values = [self._value(handle) for handle in handles]
        # sums are released before they are computed
        self.found = {key: value for key, value in self.found.items() if key in self.live}
        return values

    def _node(self, partition, function, *arguments):
        node = Node(next(self.keys), partition, function, *arguments)
        self.live.add(node.key)
        return node

    def _of_partitions(self, nodes):
        """Yield the tasks on rows whose results these tasks need, but for known ones."""
        for node in nodes:
            if isinstance(node, Node) and node.key not in self.found:
                if node.partition in (None, DRIVER):
                    yield from self._of_partitions(node.arguments)
                else:
                    yield node

    def _value(self, node):
        """Return a result; a task without rows, or on those of several partitions, runs here."""
        if not isinstance(node, Node):
            return node
        if node.key not in self.found:
            self.found[node.key] = node.function(*map(self._value, node.arguments))
        return self.found[node.key]

    def _add(self, node, tasks, sources):
        """Add a task of a partition, and those before it."""
        if node.partition is None:
            is_source = node.function is pickle.loads
            sources[node.key] = node.arguments[0] if is_source else pickle.dumps(self._value(node))
            return
        for argument in node.arguments:
            if isinstance(argument, Node):
                self._add(argument, tasks, sources)
        pairs = [(a.key, None) if isinstance(a, Node) else (None, a) for a in node.arguments]
        tasks[node.key] = node.function, pairs

    def _job(self, parts, sources, rows_of=()):
        """Run tasks in one job of Spark; return the pickled results by the numbers of partitions."""
        settings, piece, empty = (self.name, frozenset(self.live), sources), self.piece, self.empty

        def work(frames):
            number, rows = TaskContext.get().partitionId(), list(frames)

            def make():
                return piece(pd.concat(rows) if rows else empty)

            result = None
            if number in parts:
                result = run_tasks(parts[number], make if number in rows_of else None, *settings)
            yield pd.DataFrame({"number": [number], "result": [result]})

        # a condition keeps the partitions, and their places; no partition has the number -1
        frame = self.frame.where(spark_partition_id().isin([-1, *rows_of]))
        found = frame.mapInPandas(work, "number int, result binary").collect()
        return {row.number: row.result for row in found}


def run_tasks(part, make, name, live, sources):
    """Run tasks on a worker, which keeps results that later ones need; return None if it needs the rows."""
    tasks, wanted = pickle.loads(part)
    # of the process: functions that were sent have globals of their own
    kept = sys.__dict__.setdefault("_onnxsgd_results", {})
    if kept.get("name") != name:
        kept.clear()
        kept["name"] = name

    def is_missing(key):
        if key in kept or key in sources:
            return False
        function, pairs = tasks[key]
        return function is None or any(is_missing(before) for before, _ in pairs if before is not None)

    def value(key):
        if key not in kept and key in sources:
            kept[key] = pickle.loads(sources[key])
        elif key not in kept:
            function, pairs = tasks[key]
            found = [given if before is None else value(before) for before, given in pairs]
            kept[key] = make() if function is None else function(*found)
        return kept[key]

    if make is None and any(map(is_missing, wanted)):
        return None
    try:
        done = {key: value(key) for key in wanted}, None
    except Exception as error:
        done = None, error
    for key in set(kept) - {"name"}:
        # Spark has the rows, which are tuples, and the client the results
        if key in wanted or key not in live or isinstance(kept[key], tuple):
            del kept[key]
    return pickle.dumps(done)
