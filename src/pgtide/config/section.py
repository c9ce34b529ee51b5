"""What all parts of the configuration have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from pgtide.errors import ConfigError

T = TypeVar("T")


class Section(BaseModel):
    """Frozen, refuses unknown keys, and never quotes its input: that may be a secret."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


def reporting(parse: Callable[[Any], T]) -> Callable[[Any], T]:
    """Turn the ConfigError of a parser into one that pydantic gives the setting's path."""

    def validate(value: Any) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            raise as_problem(error) from None

    return validate


def as_problem(error: ConfigError) -> PydanticCustomError:
    context = {"message": error.message, "detail": error.detail, "hint": error.hint}
    return PydanticCustomError("pgtide", "{message}", context)
