"""Regular expressions as pg_flo takes them (RE2), for the engine that Spark has (Java's).

Where the two would silently differ the pattern is rewritten: ``$`` means the
end of the text, ``.`` everything but a newline, ``\\b`` and ``\\s`` know ASCII only,
whatever Java it is, case folding knows all alphabets, scripts are ``\\p{Greek}``,
groups may be named ``(?P<name>…)``, a ``{`` that no number follows is a
character, and no match begins inside of one. What Java cannot express is
refused. Lookaround and back references, which RE2 lacks, work as in Java.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pgtide.errors import ConfigError

FLAGS = "(?du)"
"""Newline is the only line end, and ``(?i)`` folds all letters, as in RE2."""
WHOLE = r"(?![\x{DC00}-\x{DFFF}])"
"""Not at the second half of a character: Java would look there, and cut characters in two."""

_TOKEN = re.compile(
    r"""
      (?P<quote>\\Q.*?(?:\\E|$))
    | (?P<property>\\[pP](?:\{(?P<not>\^?)(?P<named>[^}]*)\}|(?P<letter>.)))
    | (?P<point>\\x\{(?P<hex>[0-9A-Fa-f]{1,6})\})
    | (?P<octal>\\(?:0[0-7]{0,2}|[1-7][0-7]{1,2}))
    | (?P<foreign>\\U|\(\?(?:[(\#]|P[=>]))
    | (?P<escape>\\.)
    | (?P<posix>\[:\^?\w+:\])
    | (?P<open>\[\^?\]?)
    | (?P<close>\])
    | (?P<both>&&)
    | (?P<name>\(\?P?<(?P<group>[A-Za-z_]\w*)>)
    | (?P<flags>\(\?(?P<letters>[a-zA-Z]*-?[a-zA-Z]*)(?P<until>[:)]))
    | (?P<brace>\{(?!\d+(?:,\d*)?\}))
    | (?P<anchor>[\^$])
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {
    r"\v": r"\x0B",
    r"\s": r"[\t\n\f\r\x20]",
    r"\S": r"[^\t\n\f\r\x20]",
    r"\b": r"(?:(?<!\w)(?=\w)|(?<=\w)(?!\w))",
    r"\B": r"(?:(?<!\w)(?!\w)|(?<=\w)(?=\w))",
}
"""Escapes by what Java has to be told for them; in a class those of classes may stand too."""
_LINE = {"^": r"(?:\A|(?<=\n))", "$": r"(?=\n|\z)"}
_KNOWN = re.compile(
    "C[cfos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|"
    "Lower|Upper|ASCII|Alpha|Digit|Alnum|Punct|Graph|Print|Blank|Cntrl|XDigit|Space"
)
"""Names of properties that Java knows as they are: RE2's categories, and its own for POSIX."""
_JAVA_NAME = re.compile(r"(?:I[ns][A-Z]|java[A-Z]).*|.*=.*")
_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<plain>\w+)|\{(?P<braced>\w+)\})", re.ASCII)
_HINT = "see docs/RULES.md, Regular expressions"


@dataclass(frozen=True, slots=True)
class JavaRegex:
    """A pattern and a replacement that Java's engine takes."""

    pattern: str
    replacement: str
    certain: bool
    """False when only Java can tell whether the pattern compiles."""


class _Part(NamedTuple):
    """A token for Java, and one for Python's engine that is as well formed as it."""

    java: str
    probe: str
    certain: bool = True


def translate(pattern: str, replace: str) -> JavaRegex:
    """Raises ConfigError for what does not compile or would mean something else."""
    parts = list(_parts(pattern))
    compiled = _compile("".join(part.probe for part in parts))
    java = f"{FLAGS}{WHOLE}(?:{''.join(part.java for part in parts)})"
    replacement = _replacement(replace, compiled.groups, dict(compiled.groupindex))
    return JavaRegex(java, replacement, all(part.certain for part in parts))


def _parts(pattern: str) -> Iterator[_Part]:
    lines = [False]  # of every open group, whether ^ and $ are those of lines
    inside = False  # a class, where most characters stand for themselves
    for token in _TOKEN.finditer(pattern):
        if token.lastgroup in ("open", "close"):
            if inside and token["open"]:
                raise _in_a_class(token[0])
            inside = token.lastgroup == "open"
        if not inside:
            _follow_groups(token, lines)
        yield _in_class(token) if inside else _outside(token, lines[-1])


def _follow_groups(token: re.Match[str], lines: list[bool]) -> None:
    """Note what a token opens, closes or switches: flags hold until the end of their group."""
    here = lines[-1]
    if token["flags"]:
        on, _, off = token["letters"].partition("-")
        here = "m" not in off and ("m" in on or here)
        if token["until"] == ")":
            lines[-1] = here
            return
    if token["flags"] or token["name"] or token[0] == "(":
        lines.append(here)
    elif token[0] == ")" and len(lines) > 1:
        lines.pop()


def _in_class(token: re.Match[str]) -> _Part:
    text = token[0]
    match token.lastgroup:
        case "posix" | "both":
            raise _in_a_class(text)
        case "escape" if text in (r"\b", r"\B"):
            raise _in_a_class(text)
        case "name" | "flags" | "foreign" | "brace" | "anchor" if text != r"\U":
            return _Part(text, text)
    return _anywhere(token)


def _outside(token: re.Match[str], lines: bool) -> _Part:
    text = token[0]
    match token.lastgroup:
        case "brace":
            return _Part(r"\{", r"\{")
        case "name":
            return _Part("(", f"(?P<{token['group']}>")
        case "flags":
            if not set(token["letters"]) <= set("ims-"):
                raise ConfigError(f"{text} has other flags than i, m and s", hint=_HINT)
            return _Part(text, "(?:" if token["until"] == ":" else "")
        case "anchor" if lines:
            return _Part(_LINE[text], text)
        case "anchor":
            return _Part(r"\z", r"\Z") if text == "$" else _Part(text, text)
    return _anywhere(token)


def _anywhere(token: re.Match[str]) -> _Part:
    """What means the same in a class and outside of one."""
    text = token[0]
    match token.lastgroup:
        case "quote":
            inner = text[2:].removesuffix("\\E")
            return _Part(f"\\Q{inner}\\E", re.escape(inner))
        case "property":
            return _property(token)
        case "point":
            return _Part(text, re.escape(chr(min(int(token["hex"], 16), sys.maxunicode))))
        case "octal":
            number = int(text[1:], 8)
            return _Part(f"\\x{{{number:X}}}", re.escape(chr(number)))
        case "foreign":
            raise ConfigError(f"{text} is not known to Java", hint=_HINT)
        case "escape":
            return _Part(_ESCAPES.get(text, text), {r"\z": r"\Z"}.get(text, text))
    return _Part(text, text)


def _property(token: re.Match[str]) -> _Part:
    name = token["named"] or token["letter"] or ""
    sign = "P" if (token[0][1] == "P") != bool(token["not"]) else "p"
    known = _KNOWN.fullmatch(name) is not None
    java = name if known or _JAVA_NAME.fullmatch(name) else f"Is{name}"
    return _Part(f"\\{sign}{{{java}}}", r"\w", known)


def _in_a_class(text: str) -> ConfigError:
    return ConfigError(
        f"{text} inside a class means something else to Java",
        hint=r"write \p{Alpha}, \p{Digit}, … for a class, \[ or \& for the character",
    )


def _compile(probe: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python plans to change is no concern of Java's
        try:
            return re.compile(probe)
        except re.error as error:
            raise ConfigError(
                "its pattern does not compile", detail=f"{error.msg.capitalize()}.", hint=_HINT
            ) from None


def _replacement(template: str, groups: int, names: dict[str, int]) -> str:
    """A template of Go's ``ReplaceAllString`` as one of Java's."""
    parts: list[str] = []
    at = 0
    for found in _REFERENCE.finditer(template):
        parts.append(_literal(template[at : found.start()]))
        parts.append(r"\$" if found["dollar"] else _group(found, groups, names))
        at = found.end()
    parts.append(_literal(template[at:]))
    return "".join(parts)


def _group(found: re.Match[str], groups: int, names: dict[str, int]) -> str:
    name = found["braced"] or found["plain"]
    number = int(name) if name.isdigit() else names.get(name)
    if number is None or number > groups:
        raise ConfigError(
            f"its replacement names a group {name} that the pattern does not have",
            hint="write ${1} before a letter, digit or _, and $$ for a dollar sign",
        )
    return f"${number}"


def _literal(text: str) -> str:
    # A digit in front could follow a reference and be read as part of its number.
    return re.sub(r"^\d|[\\$]", r"\\\g<0>", text)
