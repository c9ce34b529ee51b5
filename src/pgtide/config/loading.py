"""From a YAML file and the environment to a Config.

Order: the file, then ``${NAME}`` and ``${NAME:-default}`` in its text values
(``$${`` stands for a literal ``${``), then variables such as
``PGTIDE_LOG__FLUSH_INTERVAL`` over it. Expansion comes after YAML parsing, so
that a password may hold any character. What is wrong is reported all at once,
by the path of the setting, and never by its value where that could be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pgtide.config.document import parse, read
from pgtide.config.model import Config
from pgtide.config.problems import explain
from pgtide.config.rule_files import read_routes, read_rules
from pgtide.errors import ConfigError

PREFIX = "PGTIDE_"

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?")


def load(path: Path | None, env: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration; without a path, from the environment alone."""
    values = read(path) if path else {}
    values = _expand(values, env, "")
    _override(values, env)
    directory = path.parent if path else Path()
    if path:
        _anchor(values, directory)
    _include_files(values, directory, env)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        place = str(path) if path else "the environment"
        # Not chained: the input, secrets included, hangs on pydantic's error.
        raise explain(error, place) from None


def has_overrides(env: Mapping[str, str] = os.environ) -> bool:
    """Whether any variable sets a setting, so that a missing default file is no error."""
    return any(_setting_path(name) for name in env)


def _expand(value: Any, env: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        prefix = f"{where}." if where else ""
        return {name: _expand(item, env, f"{prefix}{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, env, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _resolve(match, env, where), value)
    return value


def _resolve(match: re.Match[str], env: Mapping[str, str], where: str) -> str:
    name, default = match["name"], match["default"]
    if match[0] == "$${":
        return "${"
    if name is None:
        raise ConfigError(
            f"{where}: a ${{ that names no environment variable",
            hint="write ${NAME} or ${NAME:-default}, or $${ for the two characters themselves",
        )
    value = env.get(name)
    if default is not None:
        return value or default  # as in a shell: an empty variable counts as unset
    if value is None:
        raise ConfigError(
            f"{where}: environment variable {name} is not set",
            hint=f"export {name}=… or write ${{{name}:-default}}",
        )
    return value


def _setting_path(variable: str) -> list[str]:
    """``PGTIDE_SOURCE__URL`` to its parts; empty for a variable that is no setting."""
    if not variable.startswith(PREFIX) or "__" not in variable:
        return []
    return variable.removeprefix(PREFIX).lower().split("__")


def _override(values: dict[str, Any], env: Mapping[str, str]) -> None:
    for variable in sorted(env):
        parts = _setting_path(variable)
        if not parts:
            continue
        section = values
        for depth, part in enumerate(parts[:-1]):
            section = section.setdefault(_spelling(section, part), {})
            if not isinstance(section, dict):
                where = ".".join(parts[: depth + 1])
                raise ConfigError(f"{variable}: {where} is a single value, not a section")
        text = env[variable]
        section[_spelling(section, parts[-1])] = (
            parse(text, variable) if text.startswith(("[", "{")) else text
        )


def _spelling(section: dict[str, Any], name: str) -> str:
    """The key as the file writes it: variables are upper case, keys need not be lower case."""
    return next((key for key in section if str(key).lower() == name), name)


def _anchor(values: dict[str, Any], directory: Path) -> None:
    """Make paths independent of the working directory: another log or target is another one."""
    pipelines = _section(values, "pipelines")
    sinks = [_section(_section(pipelines, name), "sink") for name in pipelines]
    for section in (_section(values, "log"), *sinks):
        path = section.get("path")
        if isinstance(path, str) and path.strip() and "://" not in path:
            section["path"] = os.path.abspath(directory / Path(path).expanduser())


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the document; what is no section is for the model to refuse."""
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _include_files(values: dict[str, Any], directory: Path, env: Mapping[str, str]) -> None:
    """Put what ``rules_file`` and ``routes_file`` hold behind each pipeline's own."""
    pipelines = values.get("pipelines")
    for name, pipeline in pipelines.items() if isinstance(pipelines, dict) else ():
        for kind, read_file in (("rules", read_rules), ("routes", read_routes)):
            where = f"{kind}_file"
            file = pipeline.get(where) if isinstance(pipeline, dict) else None
            own = pipeline.get(kind, []) if isinstance(pipeline, dict) else None
            if not isinstance(file, str) or not isinstance(own, list):
                continue  # for the model to refuse, if it is there at all
            path = Path(os.path.abspath(directory / Path(file).expanduser()))
            expand = partial(_expand, env=env, where=f"pipelines.{name}.{where}")
            pipeline[kind] = [*own, *read_file(path, expand)]
            pipeline[where] = str(path)
