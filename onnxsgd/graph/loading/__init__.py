"""Checked loading of models: size limits, external data, types and shapes."""
