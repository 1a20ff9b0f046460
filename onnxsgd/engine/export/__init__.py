"""The training step as files: a graph, a manifest and initial values."""
