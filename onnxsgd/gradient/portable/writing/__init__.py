"""Writing of gradient graphs: tensors as expressions, nodes, shapes, broadcasting."""
