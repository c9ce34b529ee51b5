"""Regular expressions as pg_flo takes them (RE2), for the engine that Spark has (Java's).

Where the two would silently differ the pattern is rewritten: ``$`` means the
end of the text, ``.`` everything but a newline, case folding knows all
alphabets, groups may be named ``(?P<name>…)``, a ``{`` that no number follows
is a character. What Java cannot express is refused. Lookaround and back
references, which RE2 lacks, work as in Java.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from pgtide.errors import ConfigError

FLAGS = "(?du)"
"""Newline is the only line end, and ``(?i)`` folds all letters, as in RE2."""

_TOKEN = re.compile(
    r"""
      (?P<quote>\\Q.*?(?:\\E|$))
    | (?P<property>\\[pP](?:\{[^}]*\}|.))
    | (?P<point>\\x\{(?P<hex>[0-9A-Fa-f]{1,6})\})
    | (?P<escape>\\.)
    | (?P<posix>\[:\^?\w+:\])
    | (?P<open>\[\^?\]?)
    | (?P<close>\])
    | (?P<both>&&)
    | (?P<name>\(\?P?<(?P<group>[A-Za-z_]\w*)>)
    | (?P<flags>\(\?[a-zA-Z]*-?[a-zA-Z]*[:)])
    | (?P<brace>\{(?!\d+(?:,\d*)?\}))
    | (?P<dollar>\$)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<plain>\w+)|\{(?P<braced>\w+)\})", re.ASCII)
_HINT = "see docs/RULES.md, Regular expressions"


@dataclass(frozen=True, slots=True)
class JavaRegex:
    """A pattern and a replacement that Java's engine takes."""

    pattern: str
    replacement: str
    certain: bool
    """False when only Java can tell whether the pattern compiles."""


def translate(pattern: str, replace: str) -> JavaRegex:
    """Raises ConfigError for what does not compile or would mean something else."""
    java, probe = _rewrite(pattern)
    compiled, certain = _compile(probe)
    groups = compiled.groups if compiled else None
    names = dict(compiled.groupindex) if compiled else {}
    return JavaRegex(FLAGS + java, _replacement(replace, groups, names), certain)


def _rewrite(pattern: str) -> tuple[str, str]:
    """The pattern for Java, and one for Python's engine that is as well formed as it."""
    flags = re.findall(r"\(\?([a-zA-Z]+)", pattern)
    parts = list(_parts(pattern, multiline=any("m" in letters for letters in flags)))
    return "".join(java for java, _ in parts), "".join(probe for _, probe in parts)


def _parts(pattern: str, multiline: bool) -> Iterator[tuple[str, str]]:
    inside = False  # a class, where most characters stand for themselves
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        match token.lastgroup:
            case "quote":
                yield text, re.escape(text[2:].removesuffix("\\E"))
            case "property":
                yield text, r"\w"
            case "point":
                yield text, re.escape(chr(min(int(token["hex"], 16), sys.maxunicode)))
            case "brace" if not inside:
                yield r"\{", r"\{"
            case "escape":
                yield text, {r"\z": r"\Z"}.get(text, text)
            case "posix" | "open" | "both" if inside:
                raise ConfigError(
                    f"{text} inside a class means something else to Java",
                    hint=r"write \p{Alpha}, \p{Digit}, … for a class, \[ or \& for the character",
                )
            case "open":
                inside = True
                yield text, text
            case "close":
                inside = False
                yield text, text
            case "name" if not inside:
                yield "(", f"(?P<{token['group']}>"
            case "dollar" if not inside and not multiline:
                yield r"\z", r"\Z"
            case _:
                yield text, text


def _compile(probe: str) -> tuple[re.Pattern[str] | None, bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python plans to change is no concern of Java's
        try:
            return re.compile(probe), True
        except re.error as error:
            if "global flags" in error.msg or "inline flags" in error.msg:
                return None, False  # flags in the middle: fine in Java
            raise ConfigError(
                "its pattern does not compile", detail=f"{error.msg.capitalize()}.", hint=_HINT
            ) from None


def _replacement(template: str, groups: int | None, names: dict[str, int]) -> str:
    """A template of Go's ``ReplaceAllString`` as one of Java's."""
    parts: list[str] = []
    at = 0
    for found in _REFERENCE.finditer(template):
        parts.append(_literal(template[at : found.start()]))
        parts.append(r"\$" if found["dollar"] else _group(found, groups, names))
        at = found.end()
    parts.append(_literal(template[at:]))
    return "".join(parts)


def _group(found: re.Match[str], groups: int | None, names: dict[str, int]) -> str:
    name = found["braced"] or found["plain"]
    number = int(name) if name.isdigit() else names.get(name)
    if number is None or (groups is not None and number > groups):
        raise ConfigError(
            f"its replacement names a group {name} that the pattern does not have",
            hint="write ${1} before a letter, digit or _, and $$ for a dollar sign",
        )
    return f"${number}"


def _literal(text: str) -> str:
    # A digit in front could follow a reference and be read as part of its number.
    return re.sub(r"^\d|[\\$]", r"\\\g<0>", text)
