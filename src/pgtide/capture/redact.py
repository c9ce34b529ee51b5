"""Secrets taken out of SQL text before it is stored.

Replaced by ``'***'``: the literal behind PASSWORD (roles, user mappings,
servers) and behind options named like one, the connection string of a
subscription, and passwords in any literal that is a connection string or
URL. Bodies in dollar quotes are searched in turn, since DO blocks hold SQL.
Everything else stays byte for byte.
"""

from __future__ import annotations

import re

from pglast.parser import ParseError, Token, scan

HIDDEN = "'***'"

SECRET_OPTION = re.compile(
    r'"?(pass(word|wd|phrase|code)|\w*(_|ssl)(pass(word|wd)|secret)|secret\w*|\w*access_key\w*'
    r'|\w*token|\w*api_?key|private_key)"?',
    re.IGNORECASE,
)
LITERALS = frozenset({"SCONST", "USCONST"})
DOLLAR_QUOTED = re.compile(r"(\$\w*\$)(.*)\1", re.DOTALL)

# Possessive throughout: literals are other people's, and none may cost more than one pass.
_VALUE = r"(?>''(?:[^'\\]|\\.)*+''|'(?:[^'\\]|\\.|'')*+'|[^\s']*+)"
CONNECTION_STRING = re.compile(rf"\s*+(?:\w++\s*+=\s*+{_VALUE}\s*+)++")
CONNECTION_PASSWORD = re.compile(
    rf"\b((?:ssl)?password\s*=\s*)({_VALUE})", re.IGNORECASE | re.DOTALL
)
URL_PASSWORD = re.compile(r"(://[^\s:/@']*+:)[^\s/@']*+(?=@)")
URL_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&\s']*", re.IGNORECASE)
# SQL inside a quoted string, as EXECUTE takes it: its own quotes are doubled.
QUOTED_PASSWORD = re.compile(r"(\bpassword\s+)''(?:[^']|'''')*''", re.IGNORECASE)
# For text that the scanner cannot read.
PLAIN_PASSWORD = re.compile(r"(\b(?:password|connection)\s+)'(?:[^']|'')*'?", re.IGNORECASE)


def redact(text: str) -> str:
    """The same text without its secrets."""
    try:
        tokens = scan(text)
    except ParseError:
        return _redact_urls(PLAIN_PASSWORD.sub(rf"\1{HIDDEN}", text))
    parts: list[str] = []
    copied = 0
    previous = ""
    for token in tokens:
        written = text[token.start : token.end + 1]
        if token.name in LITERALS:
            parts += [text[copied : token.start], _literal(written, previous)]
            copied = token.end + 1
        if not token.name.endswith("COMMENT"):
            previous = _role(token, written)
    return "".join([*parts, text[copied:]])


def _role(token: Token, written: str) -> str:
    """What a token says about a literal right behind it."""
    if token.name in ("PASSWORD", "CONNECTION"):
        return "secret"
    names_option = token.name == "IDENT" or token.kind != "NO_KEYWORD"
    return "secret" if names_option and SECRET_OPTION.fullmatch(written) else ""


def _literal(written: str, previous: str) -> str:
    if previous == "secret":
        return HIDDEN
    if body := DOLLAR_QUOTED.fullmatch(written):
        return body[1] + redact(body[2]) + body[1]
    inner = written[written.index("'") + 1 : -1]
    if "password" in inner.lower() and CONNECTION_STRING.fullmatch(inner):
        written = CONNECTION_PASSWORD.sub(r"\1***", written[:-1]) + "'"
    return _redact_urls(QUOTED_PASSWORD.sub(rf"\1'{HIDDEN}'", written))


def _redact_urls(text: str) -> str:
    return URL_PARAMETER.sub(r"\1***", URL_PASSWORD.sub(r"\1***", text))
