"""Formulas as MathML, converted while the documentation is built.

Browsers show MathML themselves. MathJax would be fetched over the network, or add megabytes of scripts and
fonts to the pages, and pictures would need LaTeX on the machine of the build.
"""

from docutils import nodes
from latex2mathml.converter import convert


def visit_inline(translator, node):
    """Write a formula within a line."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block(translator, node):
    """Write a formula in lines of its own."""
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode
