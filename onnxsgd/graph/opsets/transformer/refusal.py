"""Forms of operators without an expansion: their nodes stay, with the reason in their metadata."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

__all__ = ["refuse", "refused_form"]

#: The metadata key of a node that stays; its value names the form without an expansion.
_KEY = "onnxsgd.no_expansion"


def refuse(node: ir.Node, form: str) -> Any:
    """Note that a `form` of an operator, such as an input, has no expansion; return None for the rule."""
    node.metadata_props[_KEY] = form
    return None


def refused_form(node: ir.Node) -> str | None:
    """Return the noted form of `node` that has no expansion, None if there is none."""
    return node.metadata_props.get(_KEY)
