"""A graph that takes texts: the converted text part of a pipeline, followed by the trained graph."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import compose, helper
from scipy import sparse

from onnxsgd._library_errors import run_error
from onnxsgd.data.columns import column_names
from onnxsgd.exceptions import EngineError, UnsupportedError
from onnxsgd.graph.sklearn.convert import input_columns
from onnxsgd.graph.sklearn.converters import own_converters
from onnxsgd.graph.sklearn.prepare import prepare
from onnxsgd.graph.sklearn.unconverted_steps import unconverted
from onnxsgd.runtime.sessions import make_session

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["with_text_part"]

#: The remedy in error messages: the trained graph alone.
_ALONE = "to_onnx(text=False) returns the graph that takes the features."
_PREFIX = "text/"


def with_text_part(model: onnx.ModelProto, transformer: BaseEstimator, sample: object) -> onnx.ModelProto:
    """Return the converted `transformer` followed by `model`.

    Parameters
    ----------
    model : ModelProto
        The trained graph, of one input, the features.
    transformer : transformer
        The steps of a pipeline that vectorize text, fitted.
    sample : object
        Data on which both forms of the transformer are compared.

    Raises
    ------
    UnsupportedError
        If no converter exists, if the installed runtime cannot run the converted part, or if its features of
        the sample differ from scikit-learn's.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    part = _convert(transformer, sample, opsets)
    _prove(part, transformer, sample)
    part = _renamed(part)
    features = model.graph.input[0]
    element = features.type.tensor_type.elem_type
    result = f"{_PREFIX}features"
    part.graph.node.append(helper.make_node("Cast", [part.graph.output[0].name], [result], to=element))
    part.graph.output[0].name = result
    part.graph.output[0].type.tensor_type.elem_type = element
    part.ir_version = model.ir_version
    for domain, version in {entry.domain: entry.version for entry in part.opset_import}.items():
        if domain not in opsets:
            model.opset_import.append(helper.make_opsetid(domain, version))
    merged = compose.merge_models(part, model, io_map=[(result, features.name)])
    helper.set_model_props(merged, {entry.key: entry.value for entry in model.metadata_props})
    return merged


def _convert(transformer: BaseEstimator, sample: object, opsets: dict[str, int]) -> onnx.ModelProto:
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import StringTensorType

    types = input_columns(sample) if column_names(sample) is not None else None
    transformer = prepare(transformer, by_position=False, predicts=False)
    try:
        with warnings.catch_warnings():
            # the converters warn about patterns that they replace; features are compared after
            warnings.simplefilter("ignore")
            part = convert_sklearn(
                transformer,
                # the converter would draw one for each call
                name=type(transformer).__name__,
                initial_types=types or [("X", StringTensorType([None, 1]))],
                target_opset={"": opsets.get("", 18), "ai.onnx.ml": opsets.get("ai.onnx.ml", 3)},
                **own_converters(),
            )
    except Exception as error:
        # the converters raise errors of many types
        raise UnsupportedError(f"{unconverted(error, transformer)} {_ALONE}") from error
    for entry in part.opset_import:
        # the converters write for the requested version, and declare the oldest sufficient one
        entry.version = opsets.get(entry.domain, entry.version)
    return part


def _renamed(part: onnx.ModelProto) -> onnx.ModelProto:
    """Return `part` with all names but those of its inputs under a prefix."""
    inputs = [value.name for value in part.graph.input]
    renamed = compose.add_prefix(part, _PREFIX, rename_inputs=False)
    assert [value.name for value in renamed.graph.input] == inputs
    return renamed


def _prove(part: onnx.ModelProto, transformer: BaseEstimator, sample: object) -> None:
    """Refuse a text part whose features of the sample differ from scikit-learn's."""
    expected = transformer.transform(sample)
    expected = expected.toarray() if sparse.issparse(expected) else np.asarray(expected)
    found = _run(part, sample)
    same = found.shape == expected.shape and np.isclose(found, expected, rtol=1e-4, atol=1e-6).all(axis=1)
    if not np.all(same):
        count = len(expected) - int(np.sum(same))
        raise UnsupportedError(
            f"The features of the converted text part differ from scikit-learn's for {count} of "
            f"{len(expected)} samples: its patterns and its lower case are those of another library. {_ALONE}"
        )


def _run(part: onnx.ModelProto, sample: object) -> np.ndarray:
    """Return the features by the runtime; if that lacks the locale of `part`, set another one."""
    try:
        return _features(part, sample)
    except (EngineError, UnsupportedError) as error:
        if "locale" not in str(error):
            raise _not_run(error) from error
    for node in part.graph.node:
        if node.op_type == "StringNormalizer":
            kept = [entry for entry in node.attribute if entry.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("locale", _OTHER_LOCALE)])
    try:
        return _features(part, sample)
    except (EngineError, UnsupportedError) as error:
        raise _not_run(error) from error


#: The locale of lower case if a machine lacks en_US.UTF-8; containers often have this one only.
_OTHER_LOCALE = "C.UTF-8"


def _not_run(error: Exception) -> UnsupportedError:
    return UnsupportedError(f"The converted text part cannot be compared with scikit-learn: {error} {_ALONE}")


def _features(part: onnx.ModelProto, sample: object) -> np.ndarray:
    session = make_session(part.SerializeToString(), 1)
    feeds = _feeds(session, sample)
    try:
        made: np.ndarray = session.run(None, feeds)[0]
    except Exception as error:
        raise run_error(error) from error
    return made


def _feeds(session: Any, sample: Any) -> dict[str, np.ndarray]:
    values = session.get_inputs()
    if column_names(sample) is None:
        return {values[0].name: np.asarray(sample, dtype=object).reshape(-1, 1)}
    columns = zip(values, sample.columns, strict=True)
    return {
        value.name: np.asarray(
            sample[name], dtype=object if value.type == "tensor(string)" else np.float32
        ).reshape(-1, 1)
        for value, name in columns
    }
