"""Parameters of losses, optimizers, schedules and penalties, in the form of scikit-learn's estimators."""

from __future__ import annotations

import inspect
from typing import Any, Self

from onnxsgd.exceptions import ParameterError

__all__ = ["Settable"]


class Settable:
    """Base class of objects whose parameters searches and ``set_params`` of an estimator reach.

    Parameters are the arguments of the constructor, each kept in an attribute of its name.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether to return the parameters of parameters too, their names behind two underscores.
        """
        own = {name: getattr(self, name) for name in _names(type(self))}
        inner = {name: value for name, value in own.items() if deep and isinstance(value, Settable)}
        return own | {
            f"{name}__{key}": item
            for name, value in inner.items()
            for key, item in value.get_params().items()
        }

    def set_params(self, **params: object) -> Self:
        """Change parameters in place; none is changed if one is refused.

        Returns
        -------
        self : object
            The same object.

        Raises
        ------
        ParameterError
            If a name is unknown, or a value is not accepted.
        """
        names = _names(type(self))
        unknown = sorted({name.partition("__")[0] for name in params} - set(names))
        if unknown:
            legal = f"it has {names}" if names else "it has none"
            raise ParameterError(f"{unknown} are no parameters of {type(self).__name__}: {legal}.")
        own = {name: value for name, value in params.items() if name in names}
        # the constructor checks the values, and converts them
        fresh = type(self)(**{**self.get_params(deep=False), **own})
        for name in {key.partition("__")[0] for key in params if key not in own}:
            inner = getattr(fresh, name)
            changes = {
                key.removeprefix(f"{name}__"): params[key] for key in params if key.startswith(f"{name}__")
            }
            if not isinstance(inner, Settable):
                raise ParameterError(f"{sorted(changes)} are no parameters of {name}={inner!r}: it has none.")
            inner.set_params(**changes)
        self.__dict__.update(fresh.__dict__)
        return self


def _names(cls: type) -> list[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, found in inspect.signature(cls).parameters.items() if found.kind in named]
