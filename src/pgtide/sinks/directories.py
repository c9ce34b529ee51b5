"""Names of schemas and tables as parts of a path at a target."""

from __future__ import annotations

import re

from pgtide.spark.layout import TableName

# What sinks keep beside the tables: no schema's directory may be called that.
OWN = "_pgtide"
LOOSE = "_messages"  # of what belongs to no table
QUARANTINE = "_quarantine"  # of texts that stand for NULLs
_RESERVED = (OWN, LOOSE, QUARANTINE)
_DELTA_LOG = "_delta_log"  # makes a table of the directory that it is in

_PLAIN = re.compile(r"[A-Za-z0-9_.-]")


def table_path(table: TableName) -> str:
    """Where a table is: a directory for the schema, one in it for the table."""
    schema, name = table
    if schema in _RESERVED:
        return f"{_other(schema)}/{_directory(name)}"
    return f"{_directory(schema)}/{_directory(name)}"


def _directory(name: str) -> str:
    """A name as part of a path: bytes that a path or URL could misread become ``~XX``."""
    if name == _DELTA_LOG:
        return _other(name)
    return "".join(
        char
        if _PLAIN.fullmatch(char) and name != "." * len(name)
        else "".join(f"~{byte:02X}" for byte in char.encode())
        for char in name
    )


def _other(name: str) -> str:
    """A plain name as none of the names that mean something here."""
    return f"~{ord(name[0]):02X}{name[1:]}"
