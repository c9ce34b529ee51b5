"""YAML text to plain values, with errors that name the place and not the text there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from pgtide.errors import ConfigError

_HALF = re.compile("[\ud800-\udfff]")
"""What escapes such as backslash ud83d stand for: no character, two make one."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, of which YAML would keep the last.

    Characters that JSON writes as two escapes are one, as in JSON.
    """

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if not isinstance(value, str) or not _HALF.search(value):
            return value
        try:
            return value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            problem = "an escape is half of a character"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"key {key.value} appears twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read(path: Path) -> dict[str, Any]:
    """The settings in a file."""
    hint = "name it with -c FILE, or set PGTIDE_SOURCE__URL and PGTIDE_LOG__PATH"
    values = read_any(path, ConfigError(f"there is no configuration file {path}", hint=hint))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} is not a list of settings", hint="write sections such as source: and log:"
        )
    return values


def read_any(path: Path, missing: ConfigError) -> Any:
    """Whatever a file holds; ``missing`` is raised when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise missing from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read {path}", detail=str(reason)) from None
    return parse(text, str(path))


def parse(text: str, place: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        # Not chained, and without what YAML quotes: the line may hold a password.
        raise ConfigError(f"{place} is not valid YAML", detail=_position(error)) from None


def _position(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = re.sub(r"""(['"]).{2,}\1""", "…", getattr(error, "problem", None) or "syntax error")
    return f"Line {mark.line + 1}, column {mark.column + 1}: {problem}." if mark else f"{problem}."
