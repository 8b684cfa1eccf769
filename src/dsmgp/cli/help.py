"""Help texts: options with what people type after them, such as COLUMN or FILE, and nothing after a flag."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

__all__ = ["HelpfulCommand", "hidden_type", "without_types_of_flags"]


class HelpfulCommand(TyperCommand):
    """A command whose help has no type beside flags and arguments."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        without_types_of_flags(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        return hidden_type(super().get_help_option(ctx))


def without_types_of_flags(parameters: list[Any]) -> None:
    """Remove the types that help shows beside flags."""
    for parameter in parameters:
        hidden_type(parameter)


def hidden_type(parameter: Any) -> Any:
    """Return a parameter, without a type in its help if it is a flag, or an argument, whose name says what it is."""
    if getattr(parameter, "is_flag", False) and parameter.metavar is None:
        parameter.metavar = ""
    # Recent releases of Typer show the type of an argument beside its name.
    if parameter.param_type_name == "argument" and hasattr(parameter, "display_type_rich"):
        parameter.display_type_rich = lambda ctx: None
    return parameter
