"""Files that hold rules or routes: a list of ours, or a document of pg_flo.

``${NAME}`` is replaced in ours only: in pg_flo's it stands for a group of a pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pgtide.config.document import read_any
from pgtide.config.pg_flo import PgFloRoutes, PgFloRules
from pgtide.config.problems import explain
from pgtide.config.rules import Route, Rule
from pgtide.config.section import Section
from pgtide.errors import ConfigError

S = TypeVar("S", bound=Section)
Expand = Callable[[Any], Any]
"""Replaces references to the environment in a document."""


class _Rules(Section):
    rules: list[Rule]


class _Routes(Section):
    routes: list[Route]


def read_rules(path: Path, expand: Expand) -> list[Rule]:
    document = _read(path)
    if isinstance(document, list):
        return _validated(_Rules, {"rules": expand(document)}, path).rules
    return _validated(PgFloRules, document, path).rules()


def read_routes(path: Path, expand: Expand) -> list[Route]:
    document = _read(path)
    if isinstance(document, list):
        return _validated(_Routes, {"routes": expand(document)}, path).routes
    return _validated(PgFloRoutes, {"routes": document}, path).rules()


def _read(path: Path) -> Any:
    hint = "correct rules_file or routes_file; they are relative to the configuration file"
    document = read_any(path, ConfigError(f"there is no file {path}", hint=hint))
    if not isinstance(document, list | dict):
        raise ConfigError(
            f"{path} holds no rules or routes",
            hint="write a list of them, or name a rule or routing file of pg_flo",
        )
    return document


def _validated(model: type[S], values: Any, path: Path) -> S:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        # Not chained: the input, salts included, hangs on pydantic's error.
        problem = explain(error, str(path), model)
    hint = problem.hint or "see docs/RULES.md, Files, and those of pg_flo"
    raise ConfigError(f"{path}: {problem.message}", detail=problem.detail, hint=hint)
