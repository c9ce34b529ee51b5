"""The exception tree. Whether to try again is a type, never a string match.

    PgtideError
    ├── TerminalError              trying again changes nothing
    │   ├── ConfigError                a setting, pattern or argument is wrong         exit 2
    │   ├── EnvironmentMissing         a program or server is not there                exit 3
    │   ├── SourceError                the source refuses, or is not the one we knew   exit 1
    │   │   ├── PrivilegeMissing           the role may not do what capture needs
    │   │   ├── SlotMissing                the slot is gone
    │   │   ├── SlotInvalidated            the server removed WAL the slot needed
    │   │   ├── SlotAdvanced               someone moved the slot past the log
    │   │   ├── SourceRewound              the server is behind the log (restored backup)
    │   │   ├── OtherSource                the log belongs to another database
    │   │   ├── TimelineDiverged           promoted from before the log's position
    │   │   ├── PublicationMissing         the publication is gone
    │   │   ├── PublicationChanged         the publication is not what init made
    │   │   ├── TableGone                  a table that is to be read does not exist
    │   │   └── IdentityMissing            UPDATE or DELETE would fail at the source
    │   ├── LogError                   the change log cannot be used                   exit 1
    │   │   ├── LogMissing                 there is no log at that path
    │   │   ├── LogDenied                  its storage refuses the keys, or has no such bucket
    │   │   ├── LogFenced                  another capture writes this log
    │   │   └── LogGap                     the log no longer holds the position asked for
    │   ├── PipelineError              a pipeline cannot go on                         exit 1
    │   │   ├── TargetError                the target is not as it must be, or refuses
    │   │   ├── Unrepresentable            a value that the target's type cannot hold
    │   │   ├── TargetClosed               nobody reads the target any more: no failure
    │   │   └── TableParked                tables of a pipeline wait for ``pgtide resume``
    │   ├── ProtocolError              bytes that are not what the protocol says       exit 1
    │   │   └── InvalidText                a value that is not UTF-8
    │   └── CheckFailed                a check found something wrong                   exit 1
    ├── Interrupted                somebody ended it by a signal                   exit 130
    └── TransientError             the same call may succeed later
        ├── SourceUnavailable          no connection, server starting or full          exit 3
        ├── SourceExhausted            the server gave a query up: time, space, a DROP exit 1
        │   └── Yielded                    somebody needed a table that was being read
        ├── SlotBusy                   another session holds the slot                  exit 1
        ├── LogUnavailable             the log's storage did not answer, disk full     exit 1
        └── TargetUnavailable          the target did not answer, or changed under us  exit 1

A message is a short fact; ``detail`` has full sentences, ``hint`` the next
command. None of them ever holds a row value or a secret. All errors are
picklable, because they cross process boundaries.
"""

from __future__ import annotations

from typing import Any


class PgtideError(Exception):
    """Base of every error that pgtide raises."""

    exit_code = 1
    default_hint = ""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint or self.default_hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.detail, self.hint)


def _rebuild(kind: type[PgtideError], message: str, detail: str, hint: str) -> PgtideError:
    return kind(message, detail=detail, hint=hint)


class TerminalError(PgtideError):
    """Trying again changes nothing: somebody has to act."""


class Interrupted(PgtideError):
    """Somebody ended it by a signal: run it again."""

    exit_code = 130


class TransientError(PgtideError):
    """The same call may succeed later: back off and try again."""


class ConfigError(TerminalError):
    """A setting, a pattern or an argument is wrong: correct it."""

    exit_code = 2


class EnvironmentMissing(TerminalError):
    """A program, library or server that is needed is not there: install or start it."""

    exit_code = 3


class SourceError(TerminalError):
    """The source refuses, or is not in the state the log says it was."""


class PrivilegeMissing(SourceError):
    """The role lacks a right: run the GRANT or ALTER ROLE in the hint."""


class SlotMissing(SourceError):
    """The replication slot does not exist: run ``pgtide init``."""


class SlotInvalidated(SourceError):
    """The server removed WAL that the slot needed: there is a gap that needs a new start."""


class SlotAdvanced(SourceError):
    """The slot was moved past the end of the log: changes in between were never logged."""


class SourceRewound(SourceError):
    """The log is ahead of the server, as after restoring a backup."""


class OtherSource(SourceError):
    """The log was written from another database cluster."""


class TimelineDiverged(SourceError):
    """The server was promoted from a point before the end of the log."""


class PublicationMissing(SourceError):
    """The publication does not exist: changes would be lost silently."""


class PublicationChanged(SourceError):
    """The publication was altered by someone else: accept it with ``pgtide init``."""


class TableGone(SourceError):
    """A table that is to be read does not exist, or not any more."""


class IdentityMissing(SourceError):
    """A table without usable replica identity would make the application's writes fail."""


class LogError(TerminalError):
    """The change log cannot be used as it is."""


class LogMissing(LogError):
    """There is no change log at that path."""


class LogDenied(LogError):
    """The log's storage refuses: the keys are wrong or lack a right, or there is no such bucket."""


class LogFenced(LogError):
    """Another capture has written to the same log: only one may."""


class LogGap(LogError):
    """The log no longer holds, or never held, the position asked for."""


class PipelineError(TerminalError):
    """A pipeline cannot go on as it is."""


class TargetError(PipelineError):
    """The target is not what the pipeline made it, or refuses what it is sent."""


class Unrepresentable(PipelineError):
    """A value cannot be held by the target's type: see ``on_unrepresentable``."""


class TargetClosed(PipelineError):
    """Whoever read the target has left, as ``| head`` does: the pipeline has no more to do."""

    exit_code = 0


class TableParked(PipelineError):
    """Some tables of a pipeline failed and wait: correct what is wrong, then ``pgtide resume``."""


class ProtocolError(TerminalError):
    """The server sent bytes that are not what the protocol says."""


class InvalidText(ProtocolError):
    """A value is not valid UTF-8, as databases with encoding SQL_ASCII allow."""


class CheckFailed(TerminalError):
    """A check found at least one thing that is wrong."""


class SourceUnavailable(TransientError):
    """The server cannot be reached, is starting or stopping, or has no room."""

    exit_code = 3
    default_hint = "Start the server or correct source.url, then run: pgtide check"


class SourceExhausted(TransientError):
    """The server gave up on a query: it took too much, or met a table that was being dropped."""


class Yielded(SourceExhausted):
    """Somebody needed a table for himself that was being read: try again later."""


class SlotBusy(TransientError):
    """Another session holds the replication slot."""


class LogUnavailable(TransientError):
    """The log's storage did not answer or is full."""


class TargetUnavailable(TransientError):
    """The target did not answer, or someone else wrote to it at the same time."""
