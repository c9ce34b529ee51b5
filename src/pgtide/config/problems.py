"""What pydantic found wrong, in words: the setting's path, the fact, the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pgtide.config.model import Config
from pgtide.config.sinks import SinkSettings
from pgtide.errors import ConfigError

FACTS = {
    "missing": "required, but not set",
    "string_type": "expected text",
    "list_type": "expected a list",
    "dict_type": "expected a section of key: value",
    "model_type": "expected a section of key: value",
    "model_attributes_type": "expected a section of key: value",  # where `type` chooses it
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
}


def explain(error: ValidationError, place: str, root: type[BaseModel] = Config) -> ConfigError:
    """One error for all that is wrong in ``place``, which holds a ``root``."""
    found = error.errors(include_url=False, include_input=False)
    problems = [_problem(details, root) for details in found]
    if len(problems) == 1:
        return problems[0]
    lines = [f"{p.message} ({p.hint})" if p.hint else p.message for p in problems]
    return ConfigError(f"{len(lines)} settings in {place} are wrong", detail="\n".join(lines))


def _problem(found: ErrorDetails, root: type[BaseModel]) -> ConfigError:
    where = _path(found["loc"])
    context = found.get("ctx", {})
    match found["type"]:
        case "extra_forbidden":
            return _unknown(found["loc"], where, root)
        case "pgtide":
            fact = f"{where}: {found['msg']}" if where else found["msg"]
            return ConfigError(fact, detail=context["detail"], hint=context["hint"])
        case "union_tag_invalid" | "union_tag_not_found" | "model_attributes_type" as kind:
            return _sink(where, kind)
        case "literal_error":
            return ConfigError(f"{where}: must be {context['expected']}")
        case "string_pattern_mismatch":
            return ConfigError(f"{where}: must match {context['pattern']}")
        case kind:
            return ConfigError(f"{where}: {FACTS.get(kind, found['msg'])}")


def _sink(where: str, kind: str) -> ConfigError:
    """The sink's section, the only one that is chosen among several, has no type or a wrong one."""
    models = get_args(get_args(SinkSettings)[0])
    *names, last = (f"'{get_args(model.model_fields['type'].annotation)[0]}'" for model in models)
    types = f"must be {', '.join(names)} or {last}"
    example = "write for example sink: {type: delta, path: ./lake}"
    match kind:
        case "union_tag_invalid":
            return ConfigError(f"{where}.type: {types}", hint=example)
        case "union_tag_not_found":
            return ConfigError(f"{where}.type: {FACTS['missing']}", hint=f"{example}; type {types}")
        case _:
            return ConfigError(f"{where}: {FACTS[kind]}", hint=f"{example}; type {types}")


def _path(location: tuple[int | str, ...]) -> str:
    """``("pipelines", "lake", "tables", 0)`` as it is written: ``pipelines.lake.tables[0]``."""
    match location:
        case (*section, _, "[key]"):  # what is wrong is a name in the section
            location = tuple(section)
        case ("pipelines", name, "sink", _, *rest):  # pydantic tells the sink's type as well
            location = ("pipelines", name, "sink", *rest)
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _unknown(location: tuple[int | str, ...], where: str, root: type[BaseModel]) -> ConfigError:
    name, parent = str(location[-1]), location[:-1]
    here = sorted(_settings_in(root, parent))
    prefix = f"{_path(parent)}." if parent else ""
    near = difflib.get_close_matches(name.lower(), here, n=1)
    elsewhere = [path for path in _all_settings() if path.rpartition(".")[2] == name.lower()]
    suggestions = [f"{prefix}{match}" for match in near] or elsewhere
    return ConfigError(
        f"{where}: unknown setting",
        detail=f"Valid here: {', '.join(here)}.",
        hint=f"did you mean {suggestions[0]}?" if suggestions else "",
    )


def _settings_in(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The names that a section knows."""
    if not location:
        return [field.alias or name for name, field in model.model_fields.items()]
    annotation: Any = model.model_fields[str(location[0])].annotation
    rest = location[1:]
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        choices = get_args(annotation)
        tagged = [model for model in choices if rest and _is_tagged(model, rest[0])]
        if tagged or get_origin(annotation) in (dict, list):
            rest = rest[1:]  # it names one of several, not a setting
        annotation = (tagged or choices)[-1 if get_origin(annotation) is dict else 0]
    return _settings_in(annotation, rest)


def _is_tagged(model: Any, tag: int | str) -> bool:
    """Whether this is the section that ``type: tag`` chooses among several."""
    kind = model.model_fields.get("type") if hasattr(model, "model_fields") else None
    return kind is not None and tag in get_args(kind.annotation)


def _all_settings() -> Iterator[str]:
    for section, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from (f"{section}.{name}" for name in field.annotation.model_fields)
