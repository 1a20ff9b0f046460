"""Facts about operators, one row for each operator."""

from __future__ import annotations

from enum import Flag, auto
from functools import cache

__all__ = ["ML_OPERATORS", "OPERATORS", "TYPE_ONLY", "Fact", "having", "having_in_ml"]


class Fact(Flag):
    """Facts about an operator that hold for all its attributes.

    Attributes
    ----------
    ELEMENTWISE
        Each element of the result depends on the elements at the same position; operands are broadcast.
    COMMUTATIVE
        The order of the operands is arbitrary.
    BOOLEAN, INT64
        The element type of the results, for all operands.
    FORM
        The same elements, in another shape, order or type.
    IN_ORDER
        The same elements in the same order, in another shape or type.
    SIZES
        The sizes of the operand, for any elements.
    REDUCTION
        One element for all those along some axes.
    FLAT
        Piecewise constant in every real operand: the gradient is zero.
    RANDOM
        The result is drawn at each run.
    RECURRENT
        Runs along the first axis of its operand and carries states; all have the same positions of operands.
    SEQUENCE
        The result is a sequence of tensors.
    RECORDABLE
        A CUDA graph replays its kernel, which neither copies from or to the host nor waits for the device.
    """

    ELEMENTWISE = auto()
    COMMUTATIVE = auto()
    BOOLEAN = auto()
    INT64 = auto()
    FORM = auto()
    IN_ORDER = auto()
    SIZES = auto()
    REDUCTION = auto()
    FLAT = auto()
    RANDOM = auto()
    RECURRENT = auto()
    SEQUENCE = auto()
    RECORDABLE = auto()


@cache
def having(facts: Fact) -> frozenset[str]:
    """Return the standard operators that have all of `facts`."""
    return frozenset(name for name, held in OPERATORS.items() if facts in held)


@cache
def having_in_ml(facts: Fact) -> frozenset[str]:
    """Return the operators of ``ai.onnx.ml`` that have all of `facts`."""
    return frozenset(name for name, held in ML_OPERATORS.items() if facts in held)


ELEMENTWISE, COMMUTATIVE, BOOLEAN, INT64 = Fact.ELEMENTWISE, Fact.COMMUTATIVE, Fact.BOOLEAN, Fact.INT64
FORM, IN_ORDER, SIZES, REDUCTION = Fact.FORM, Fact.IN_ORDER, Fact.SIZES, Fact.REDUCTION
FLAT, RANDOM, RECORDABLE = Fact.FLAT, Fact.RANDOM, Fact.RECORDABLE
RECURRENT, SEQUENCE = Fact.RECURRENT, Fact.SEQUENCE

#: The standard operators.
OPERATORS: dict[str, Fact] = {
    "Abs": ELEMENTWISE | RECORDABLE,
    "Acos": ELEMENTWISE,
    "Acosh": ELEMENTWISE,
    "Add": ELEMENTWISE | COMMUTATIVE | RECORDABLE,
    "And": ELEMENTWISE | COMMUTATIVE | BOOLEAN | FLAT | RECORDABLE,
    "ArgMax": INT64 | FLAT | RECORDABLE,
    "ArgMin": INT64 | FLAT | RECORDABLE,
    "Asin": ELEMENTWISE,
    "Asinh": ELEMENTWISE,
    "Atan": ELEMENTWISE,
    "Atanh": ELEMENTWISE,
    "AveragePool": RECORDABLE,
    "BatchNormalization": RECORDABLE,
    "Bernoulli": FLAT | RANDOM,
    "BitShift": ELEMENTWISE,
    "BitwiseAnd": ELEMENTWISE | COMMUTATIVE | FLAT,
    "BitwiseNot": ELEMENTWISE | FLAT,
    "BitwiseOr": ELEMENTWISE | COMMUTATIVE | FLAT,
    "BitwiseXor": ELEMENTWISE | COMMUTATIVE | FLAT,
    "Cast": ELEMENTWISE | FORM | IN_ORDER | RECORDABLE,
    "CastLike": RECORDABLE,
    "Ceil": ELEMENTWISE | FLAT | RECORDABLE,
    "Celu": ELEMENTWISE,
    "Clip": ELEMENTWISE | RECORDABLE,
    "Constant": FLAT | RECORDABLE,
    "ConstantOfShape": FLAT,
    "Conv": RECORDABLE,
    "ConvTranspose": RECORDABLE,
    "Cos": ELEMENTWISE | RECORDABLE,
    "Cosh": ELEMENTWISE,
    "CumSum": RECORDABLE,
    "Div": ELEMENTWISE | RECORDABLE,
    "Elu": ELEMENTWISE | RECORDABLE,
    "Equal": ELEMENTWISE | COMMUTATIVE | BOOLEAN | FLAT | RECORDABLE,
    "Erf": ELEMENTWISE | RECORDABLE,
    "Exp": ELEMENTWISE | RECORDABLE,
    "Expand": FORM | RECORDABLE,
    "EyeLike": FLAT,
    "Flatten": FORM | IN_ORDER | RECORDABLE,
    "Floor": ELEMENTWISE | FLAT | RECORDABLE,
    "GRU": RECURRENT,
    "Gather": RECORDABLE,
    "GatherElements": RECORDABLE,
    "Gelu": ELEMENTWISE | RECORDABLE,
    "Gemm": RECORDABLE,
    "GlobalAveragePool": RECORDABLE,
    "GlobalMaxPool": RECORDABLE,
    "Greater": ELEMENTWISE | BOOLEAN | FLAT | RECORDABLE,
    "GreaterOrEqual": ELEMENTWISE | BOOLEAN | FLAT | RECORDABLE,
    "HardSigmoid": ELEMENTWISE | RECORDABLE,
    "HardSwish": ELEMENTWISE | RECORDABLE,
    "Hardmax": FLAT,
    "Identity": ELEMENTWISE | FORM | IN_ORDER | RECORDABLE,
    "InstanceNormalization": RECORDABLE,
    "IsInf": ELEMENTWISE | BOOLEAN | FLAT | RECORDABLE,
    "IsNaN": ELEMENTWISE | BOOLEAN | FLAT | RECORDABLE,
    "LSTM": RECURRENT,
    "LayerNormalization": RECORDABLE,
    "LeakyRelu": ELEMENTWISE | RECORDABLE,
    "Less": ELEMENTWISE | BOOLEAN | FLAT | RECORDABLE,
    "LessOrEqual": ELEMENTWISE | BOOLEAN | FLAT | RECORDABLE,
    "Log": ELEMENTWISE | RECORDABLE,
    "LogSoftmax": RECORDABLE,
    "Max": ELEMENTWISE | COMMUTATIVE | RECORDABLE,
    "MaxPool": RECORDABLE,
    "Mean": ELEMENTWISE | COMMUTATIVE,
    "Min": ELEMENTWISE | COMMUTATIVE | RECORDABLE,
    "Mish": ELEMENTWISE | RECORDABLE,
    "Mod": ELEMENTWISE | RECORDABLE,
    "Mul": ELEMENTWISE | COMMUTATIVE | RECORDABLE,
    "Multinomial": FLAT | RANDOM,
    "Neg": ELEMENTWISE | RECORDABLE,
    "NonMaxSuppression": INT64 | FLAT,
    "NonZero": INT64 | FLAT,
    "Not": ELEMENTWISE | BOOLEAN | FLAT | RECORDABLE,
    "Or": ELEMENTWISE | COMMUTATIVE | BOOLEAN | FLAT | RECORDABLE,
    "PRelu": ELEMENTWISE | RECORDABLE,
    "Pad": RECORDABLE,
    "Pow": ELEMENTWISE | RECORDABLE,
    "RNN": RECURRENT,
    "RandomNormal": FLAT | RANDOM,
    "RandomNormalLike": FLAT | RANDOM,
    "RandomUniform": FLAT | RANDOM,
    "RandomUniformLike": FLAT | RANDOM,
    "Reciprocal": ELEMENTWISE | RECORDABLE,
    "ReduceL1": REDUCTION | RECORDABLE,
    "ReduceL2": REDUCTION | RECORDABLE,
    "ReduceLogSum": REDUCTION | RECORDABLE,
    "ReduceLogSumExp": REDUCTION | RECORDABLE,
    "ReduceMax": REDUCTION | RECORDABLE,
    "ReduceMean": REDUCTION | RECORDABLE,
    "ReduceMin": REDUCTION | RECORDABLE,
    "ReduceProd": REDUCTION | RECORDABLE,
    "ReduceSum": REDUCTION | RECORDABLE,
    "ReduceSumSquare": REDUCTION | RECORDABLE,
    "Relu": ELEMENTWISE | RECORDABLE,
    "Reshape": FORM | IN_ORDER | RECORDABLE,
    "Round": ELEMENTWISE | FLAT | RECORDABLE,
    "ScatterElements": RECORDABLE,
    "Selu": ELEMENTWISE | RECORDABLE,
    "SequenceConstruct": SEQUENCE,
    "SequenceEmpty": SEQUENCE,
    "SequenceErase": SEQUENCE,
    "SequenceInsert": SEQUENCE,
    "SequenceMap": SEQUENCE,
    "Shape": INT64 | SIZES | FLAT,
    "Shrink": ELEMENTWISE | RECORDABLE,
    "Sigmoid": ELEMENTWISE | RECORDABLE,
    "Sign": ELEMENTWISE | FLAT | RECORDABLE,
    "Sin": ELEMENTWISE | RECORDABLE,
    "Sinh": ELEMENTWISE,
    "Size": INT64 | SIZES | FLAT,
    "Slice": RECORDABLE,
    "Softmax": RECORDABLE,
    "Softplus": ELEMENTWISE | RECORDABLE,
    "Softsign": ELEMENTWISE | RECORDABLE,
    "SplitToSequence": SEQUENCE,
    "Sqrt": ELEMENTWISE | RECORDABLE,
    "Squeeze": FORM | IN_ORDER | RECORDABLE,
    "Sub": ELEMENTWISE | RECORDABLE,
    "Sum": ELEMENTWISE | COMMUTATIVE | RECORDABLE,
    "Tan": ELEMENTWISE,
    "Tanh": ELEMENTWISE | RECORDABLE,
    "ThresholdedRelu": ELEMENTWISE | RECORDABLE,
    "Tile": RECORDABLE,
    "Transpose": FORM | RECORDABLE,
    "Trilu": RECORDABLE,
    "Unsqueeze": FORM | IN_ORDER | RECORDABLE,
    "Where": ELEMENTWISE | RECORDABLE,
    "Xor": ELEMENTWISE | COMMUTATIVE | BOOLEAN | FLAT | RECORDABLE,
}

#: The operators of ``ai.onnx.ml``.
ML_OPERATORS: dict[str, Fact] = {
    "Binarizer": ELEMENTWISE,
    "Imputer": ELEMENTWISE,
    "LabelEncoder": ELEMENTWISE,
    "Scaler": ELEMENTWISE,
}

#: The position of an operand of which only the element type matters.
TYPE_ONLY = {"CastLike": 1}
