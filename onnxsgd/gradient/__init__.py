"""The gradient of a graph, as a graph."""
