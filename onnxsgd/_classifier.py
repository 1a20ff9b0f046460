"""Import path of pickles of format 1; it goes when that format is no longer read."""

from onnxsgd.estimators.classifier import OnnxSGDClassifier

__all__ = ["OnnxSGDClassifier"]
