"""One step of preparing a source: a line for people, and the SQL behind it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """``done``: it is already there. ``note``: nothing to run, something to know."""

    name: str
    text: str
    sql: tuple[str, ...] = ()
    done: bool = False
    note: bool = False

    def script(self) -> str:
        """Runnable SQL with the text as its comment; empty when there is nothing to run."""
        if self.done or not self.sql:
            return ""
        body = "\n".join(statement.rstrip().rstrip(";") + ";" for statement in self.sql)
        body = f"BEGIN;\n{body}\nCOMMIT;" if len(self.sql) > 1 or "\n" in self.sql[0] else body
        return f"-- {self.text}\n{body}\n"
