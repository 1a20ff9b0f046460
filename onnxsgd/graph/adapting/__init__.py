"""Adapters in graphs: the weights that can have one, branches beside them, merging."""
