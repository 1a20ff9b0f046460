"""Training on shards of the data in rounds of pure functions, over the tasks of a distributed engine."""
