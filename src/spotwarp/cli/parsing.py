"""How a verb takes what was typed: text as it is, without the library's converter where there is nothing to convert.

Loading that converter costs a third of the start of every verb. Where it is needed (numbers that were typed), it still
does its work.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Verb(TyperCommand):
    """A verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As the library has it, each taken as it was typed."""
        return [_as_typed(param) for param in super().get_params(ctx)]


class Verbs(TyperGroup):
    """The program, of which the verbs are parts."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As the library has it, each taken as it was typed."""
        return [_as_typed(param) for param in super().get_params(ctx)]


def _as_typed(param: Any) -> Any:
    if "process_value" not in vars(param):  # asked for more than once, as for the help
        param.process_value = partial(_processed, param, param.process_value)
    return param


def _processed(param: Any, convert: Any, ctx: Any, value: Any) -> Any:
    wanted = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    many = param.nargs != 1 or getattr(param, "multiple", False)
    texts = wanted == list[str] and (value is None or isinstance(value, (tuple, list)))
    plain = not many and (value is None or (wanted in (str, int, float) and type(value) is wanted))
    if not (texts or plain) or (param.required and not value):
        return convert(ctx, value)
    if texts:
        value = list(value or ())
    return param.callback(ctx, param, value) if param.callback is not None else value
