"""The card of an estimator as HTML.

Colours follow the page: text has its colour, borders and fills are half-transparent greys. A card is thus
legible in light and dark notebooks, and inside the diagrams of scikit-learn, whatever sets their theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from onnxsgd.estimators.card_rows import Card, Row, Tensor

__all__ = ["write_card"]

#: More tensors than the first number are folded; more than the second are counted, not listed.
_SHOWN, _LISTED = 4, 200

# elements without a style in notebooks: Jupyter has its own for lists and tables
_STYLE = """
.onnxsgd-card{box-sizing:border-box;max-width:46em;margin:.3em 0 .6em;padding:.6em .9em;color:inherit;
border:1px solid rgba(128,128,128,.5);border-radius:.4em;background:rgba(128,128,128,.08);
line-height:1.45;text-align:left;white-space:normal;overflow-wrap:anywhere}
.onnxsgd-row{display:grid;grid-template-columns:6em minmax(0,1fr);column-gap:.6em;margin-top:.2em}
.onnxsgd-card summary{cursor:pointer}
.onnxsgd-tensors{max-height:16em;overflow-y:auto;margin:.1em 0 .2em 1.2em;font-family:monospace;
font-size:.93em}
.onnxsgd-tensors span{opacity:.8;margin-left:1em}
.onnxsgd-trained,.onnxsgd-frozen{display:inline-block;box-sizing:border-box;width:.7em;height:.7em;
margin-right:.4em;border-radius:.15em}
.onnxsgd-trained{background:#f0a818}
.onnxsgd-frozen{border:1px solid rgba(128,128,128,.9);background:rgba(128,128,128,.35)}
"""


def write_card(card: Card) -> str:
    """Return the HTML of a card; its texts are escaped."""
    rows = (
        f'<div class="onnxsgd-row"><b>{_label(row)}</b> <div>{_body(row)}</div></div>' for row in card.rows
    )
    return (
        f'<div class="onnxsgd-card"><style>{_STYLE}</style>'
        f"<div><b>{escape(card.title)}</b>: {escape(card.status)}</div>{''.join(rows)}</div>"
    )


def _label(row: Row) -> str:
    # the marks have the colours of the pictures of graphs
    kind = "trained" if row.are_trained else "frozen"
    mark = f'<span class="onnxsgd-{kind}" aria-hidden="true"></span>' if row.tensors else ""
    return f"{mark}{escape(row.label)}"


def _body(row: Row) -> str:
    text = escape(row.text)
    if not row.tensors:
        return text
    if len(row.tensors) <= _SHOWN:
        return f"{text}{_list(row.tensors)}"
    return f"<details><summary>{text}</summary>{_list(row.tensors)}</details>"


def _list(tensors: Sequence[Tensor]) -> str:
    items = [f"{escape(tensor.name)} <span>{_shape(tensor.shape)}</span>" for tensor in tensors[:_LISTED]]
    if len(tensors) > _LISTED:
        items.append(f"and {len(tensors) - _LISTED:,} more")
    listed = "".join(f"<div>{item}</div>" for item in items)
    return f'<div class="onnxsgd-tensors">{listed}</div>'


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "number"
