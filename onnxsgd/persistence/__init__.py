"""Saved estimators: the form of what is learned, values as JSON and tensors, files written whole."""
