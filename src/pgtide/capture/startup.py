"""Before the first byte: is this the source the log was written from, and can it go on?

Start-up refuses to guess. Everything that could make the log lie (a slot that
moved, a restored backup, another server, a changed publication) is its own
error with the command that repairs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from pgtide.capture.ddl import SigningKey
from pgtide.capture.stream import Stream, check_slot, flush_lsn
from pgtide.config import Config
from pgtide.errors import (
    OtherSource,
    PublicationChanged,
    PublicationMissing,
    SlotBusy,
    SourceRewound,
    TimelineDiverged,
)
from pgtide.log.source import LogSource
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect_replication, run
from pgtide.postgres.ddl_trigger import read_key
from pgtide.postgres.fingerprint import changes_since
from pgtide.postgres.publication import publication_names
from pgtide.postgres.settings import read_slot_settings
from pgtide.postgres.slot import capture_lock_key


@dataclass(frozen=True, slots=True)
class Start:
    """What capture knows once every check has passed."""

    stream: Stream
    timeline: int
    key: SigningKey | None


def check_source(config: Config, conn: SqlConnection, log: LogWriter) -> Start:
    """Check that the log can be continued from this source, and take the lock."""
    slot = config.source.slot
    _lock(conn, slot)
    system, timeline = _identify(config, log)
    recorded = LogSource.of(log.properties, log.storage.root)
    _check_same_source(recorded, LogSource(system, conn.info.dbname, slot))
    check_slot(conn, slot, log.position)
    _check_not_rewound(log.position, flush_lsn(conn))
    publications = check_publications(conn, slot)
    key = read_key(conn) if config.source.ddl else None
    return Start(
        stream=Stream(slot, publications, config.source.origin, conn.info.server_version),
        timeline=timeline,
        key=SigningKey.of(key) if key else None,
    )


def check_publications(conn: SqlConnection, slot: str) -> tuple[str, ...]:
    """The slot's publications, exactly as ``init`` made them."""
    names = tuple(publication_names(conn, slot))
    if not names:
        raise PublicationMissing(
            f"publication {slot} does not exist",
            detail="Without it the server would skip every change.",
            hint="Run: pgtide init",
        )
    settings = read_slot_settings(conn, slot)
    if settings and (changes := changes_since(conn, settings.fingerprint)):
        gone = any("gone" in change or "created again" in change for change in changes)
        kind = PublicationMissing if gone else PublicationChanged
        raise kind(
            "the publication is not what pgtide init made",
            detail="; ".join(changes) + ".",
            hint="Run: pgtide init (it accepts or repairs the publication)",
        )
    return names


def _lock(conn: SqlConnection, slot: str) -> None:
    query = sql.SQL("SELECT pg_catalog.pg_try_advisory_lock({})").format(capture_lock_key(slot))
    row = conn.execute(query).fetchone()
    if not row or not row[0]:
        raise SlotBusy(
            f"another capture is attached to slot {slot}",
            detail="It holds the slot's advisory lock.",
            hint="Stop the other one first; pgtide status shows its process.",
        )


def _identify(config: Config, log: LogWriter) -> tuple[str, int]:
    """System identifier and timeline, having checked that the timeline leads on from V."""
    walsender = connect_replication(config.source.url.reveal(), application_name="pgtide capture")
    try:
        answer = run(walsender, "IDENTIFY_SYSTEM")
        system = (answer.get_value(0, 0) or b"").decode()
        timeline = int(answer.get_value(0, 1) or b"0")
        if log.timeline and timeline != log.timeline:
            history = b""
            if timeline > 1:
                history = run(walsender, f"TIMELINE_HISTORY {timeline}").get_value(0, 1) or b""
            check_timeline(history.decode(), log.timeline, timeline, log.position)
    finally:
        walsender.close()
    return system, timeline


def check_timeline(history: str, ours: int, now: int, position: Lsn) -> None:
    """A promotion is fine if it left our timeline at or after V."""
    for line in history.splitlines():
        fields = line.split("\t")
        if len(fields) >= 2 and fields[0].strip() == str(ours):
            if Lsn.parse(fields[1]) >= position:
                return
            break
    raise TimelineDiverged(
        "the server was promoted from a point before the end of the log",
        detail=f"The log is at {position} on timeline {ours}; the server is on timeline {now} "
        "and does not hold what the log has.",
        hint="Start a new log: pgtide destroy, set another log.path, pgtide init",
    )


def _check_same_source(recorded: LogSource, now: LogSource) -> None:
    if (recorded.system_identifier, recorded.database) != (now.system_identifier, now.database):
        raise OtherSource(
            "the log belongs to another database",
            detail=f"It was written from database {recorded.database} of system "
            f"{recorded.system_identifier}; this is database {now.database} of system "
            f"{now.system_identifier}.",
            hint="Point log.path at an empty directory for this source, then run: pgtide init",
        )
    if recorded.slot != now.slot:
        raise OtherSource(
            "the log belongs to another slot",
            detail=f"It was written from slot {recorded.slot}; source.slot is {now.slot}.",
            hint=f"Set source.slot to {recorded.slot}, or log.path to the log of {now.slot}.",
        )


def _check_not_rewound(position: Lsn, server: Lsn) -> None:
    if position > server:
        raise SourceRewound(
            "the server is behind the log",
            detail=f"The log is at {position}, the server's WAL ends at {server}: "
            "it was restored from a backup, or lost its last writes.",
            hint="Start over: pgtide destroy --yes, a new log.path, pgtide init",
        )
