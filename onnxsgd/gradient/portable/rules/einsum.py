"""The gradient of Einsum, which is an Einsum of the gradient and the other operands."""

from __future__ import annotations

from onnxsgd.gradient.portable.rules.indexing import positions
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, shape_of
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.known_shapes import Dims, broadcast
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["einsum_gradient"]

_ELLIPSIS = "..."


def einsum_gradient(n: Call, index: int) -> Tensor:
    """Return the gradient of an Einsum with respect to the operand at `index`.

    For ``Y = Einsum("ij,jk->ik", A, B)``, dA is ``Einsum("ik,jk->ij", dY, B)``: the operand and the result
    exchange their places. A letter that only this operand has was summed: the gradient is repeated along it.
    A letter that it repeats takes a diagonal: the gradient is 0 beside that. The axes of an ellipsis may have
    been broadcast: the gradient is summed over them.
    """
    operands, result = _terms(n)
    letters = _letters(n, operands[index])
    others = [(term, n.input(k)) for k, term in enumerate(operands) if k != index]
    present = set(result).union(*(term for term, _ in others))
    kept = "".join(letter for letter in dict.fromkeys(letters) if letter in present)
    lead = _ELLIPSIS if _ELLIPSIS in result else ""
    terms = [(result, n.dy), *others]
    equation = ",".join(term for term, _ in terms) + "->" + lead + kept
    product: Tensor = op.Einsum(*(tensor for _, tensor in terms), equation=equation)
    if lead:
        product = _sum_batch(n, product, index)
    repeated = [place for place, letter in enumerate(letters) if letter in letters[:place]]
    missing = [place for place, letter in enumerate(letters) if letter not in kept]
    added = sorted({*repeated, *missing})
    whole = op.Unsqueeze(product, [place - len(letters) for place in added]) if added else product
    for place in repeated:
        whole = whole * _diagonal(n.input(index), letters, place)
    return op.Expand(whole, shape_of(n.input(index))) if missing else whole


def _terms(n: Call) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result; without an arrow, of the implied result."""
    left, arrow, right = n.attribute("equation").replace(" ", "").partition("->")
    letters = left.replace(",", "").replace(".", "")
    once = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return left.split(","), right if arrow else (_ELLIPSIS if _ELLIPSIS in left else "") + once


def _letters(n: Call, term: str) -> str:
    """Return the letters of an operand after its ellipsis."""
    letters = term.removeprefix(_ELLIPSIS)
    if _ELLIPSIS in letters:
        raise n.refuse(f"has an ellipsis that does not come first in {term!r}, which has no gradient rule")
    return letters


def _diagonal(x: Tensor, letters: str, place: int) -> Tensor:
    """Return a mask of equal positions along an axis and the first axis with its letter."""
    size = dim_of(x, place - len(letters))
    first, other = (positions(x, size, len(letters) - 1 - p) for p in (letters.index(letters[place]), place))
    hits: Tensor = op.Equal(first, other)
    return hits


def _sum_batch(n: Call, product: Tensor, index: int) -> Tensor:
    """Sum the axes of the result's ellipsis, which come first in `product`, to those of an operand."""
    batches = [_batch(n, term, n.input(k)) for k, term in enumerate(_terms(n)[0])]
    own, whole = batches[index], broadcast(*batches)
    if own is None or whole is None or not _terms(n)[1].startswith(_ELLIPSIS):
        raise n.refuse("with an ellipsis needs operands of known shapes and the ellipsis first in its result")
    lead = len(whole) - len(own)
    inner = [axis for axis, have in enumerate(own, start=lead) if have != whole[axis]]
    summed = op.ReduceSum(product, inner, keepdims=1) if inner else product
    return op.ReduceSum(summed, list(range(lead)), keepdims=0) if lead else summed


def _batch(n: Call, term: str, x: Tensor) -> Dims:
    """Return the dimensions that the ellipsis of a term denotes."""
    if _ELLIPSIS not in term:
        return ()
    return None if x.dims is None else x.dims[: len(x.dims) - len(term) + len(_ELLIPSIS)]
