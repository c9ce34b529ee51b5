"""What each message becomes, and what malformed ones raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pgtide.errors import InvalidText, ProtocolError
from pgtide.log.event import UNCHANGED, Value
from pgtide.position import Lsn
from pgtide.wal.decoder import KEPT_BYTES, Decoded, Decoder
from tests.wal import pgoutput as p

ORDERS, SKIPPED = 16_384, 16_385
RELATIONS = [
    p.relation(ORDERS, "public", "orders", ["id", "note"]),
    p.relation(SKIPPED, "public", "skipped", ["id"]),
]


def make_decoder(resume: int = 0) -> Decoder:
    return Decoder(p.SmallCatalog(), resume=Lsn(resume))


def decode(*messages: bytes, decoder: Decoder | None = None) -> Decoded:
    return (decoder or make_decoder()).decode(p.chunk_of(messages))


def rows(decoded: Decoded, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in decoded.rows.to_pylist()]


def transaction(*messages: bytes, lsn: int = 100, end: int = 120) -> list[bytes]:
    return [p.begin(lsn), *RELATIONS, *messages, p.commit(lsn, end)]


def test_values_null_empty_and_unchanged_are_told_apart() -> None:
    new: list[list[Value]] = [["1", ""], ["2", None], ["3", UNCHANGED]]
    decoded = decode(*transaction(*[p.update(ORDERS, row) for row in new]))
    assert rows(decoded, "after", "unchanged", "before") == [
        (["1", ""], None, None),
        (["2", None], None, None),
        (["3", None], [1], None),
    ]


def test_positions_count_inside_the_transaction_and_the_last_row_says_so() -> None:
    decoded = decode(
        *transaction(p.insert(ORDERS, ["1", "a"]), p.delete(ORDERS, ["1", None])),
        *transaction(p.insert(ORDERS, ["2", "b"]), lsn=200, end=220),
    )
    assert rows(decoded, "lsn", "seq", "last") == [
        (100, 0, False),
        (100, 1, True),
        (200, 0, True),
    ]
    assert decoded.complete == 3
    assert decoded.end == 220


def test_left_out_tables_are_counted_and_keep_their_place() -> None:
    decoder = make_decoder()
    decoded = decode(
        *transaction(
            p.insert(ORDERS, ["1", "a"]),
            p.insert(SKIPPED, ["9"]),
            p.truncate([SKIPPED, ORDERS], cascade=True),
            p.insert(SKIPPED, ["9"]),
        ),
        decoder=decoder,
    )
    assert rows(decoded, "seq", "op", "last", "payload") == [
        (0, 0, False, None),
        (3, 3, True, '{"cascade": true, "restart_identity": false}'),
    ]
    assert decoder.filtered == 3


def test_a_transaction_over_several_chunks_closes_the_row_that_was_held_back() -> None:
    decoder = make_decoder()
    first = decode(p.begin(100), *RELATIONS, p.insert(ORDERS, ["1", "a"]), decoder=decoder)
    assert (first.complete, first.open, first.closes_earlier) == (0, True, False)
    second = decode(p.commit(100, 120), decoder=decoder)
    assert (second.complete, second.open, second.closes_earlier) == (0, False, True)
    assert second.end == 120


def test_what_ends_at_or_before_the_resume_position_is_dropped() -> None:
    decoded = decode(
        *transaction(p.insert(ORDERS, ["1", "a"]), lsn=100, end=120),
        *transaction(p.insert(ORDERS, ["2", "b"]), lsn=120, end=150),
        decoder=make_decoder(resume=120),
    )
    assert rows(decoded, "lsn", "after") == [(120, ["2", "b"])]


def test_a_relation_of_a_dropped_transaction_is_asked_for_only_when_a_row_needs_it() -> None:
    catalog = p.SmallCatalog()
    decoder = Decoder(catalog, resume=Lsn(120))
    decoder.decode(p.chunk_of(transaction(p.insert(ORDERS, ["1", "a"]), lsn=100, end=120)))
    assert catalog.relations == []
    decoded = decoder.decode(
        p.chunk_of(
            [
                *(p.begin(130), p.truncate([SKIPPED]), p.insert(ORDERS, ["2", "b"])),
                p.commit(130, 150),
            ]
        )
    )
    assert rows(decoded, "seq", "after") == [(1, ["2", "b"])]
    assert catalog.relations == [("skipped", 130), ("orders", 130)]


def test_a_message_outside_transactions_has_a_position_of_its_own() -> None:
    decoded = decode(
        p.message("app", b"first", 100, transactional=False),
        *transaction(p.insert(ORDERS, ["1", "a"]), lsn=100, end=120),
        p.message(p.OWN_PREFIX, b"", 130, transactional=False),
    )
    assert rows(decoded, "lsn", "seq", "last", "payload", "committed_at") == [
        (99, 0, True, "first", None),
        (100, 0, True, None, decoded.rows["committed_at"][1].as_py()),
    ]
    assert (decoded.complete, decoded.end) == (2, 130)


def test_types_and_origins_are_no_rows() -> None:
    catalog = p.SmallCatalog()
    decoder = Decoder(catalog, resume=Lsn(0))
    decoded = decoder.decode(
        p.chunk_of([p.begin(1), p.origin("other"), p.type_name(99, "s", "mood"), p.commit(1, 2)])
    )
    assert decoded.rows.num_rows == 0
    assert [(t.schema, t.name) for t in catalog.types] == [("s", "mood")]


def test_many_relations_and_rows_outgrow_every_table() -> None:
    names = [f"t{number}" for number in range(500)]
    relations = [p.relation(20_000 + n, "s", name, ["id"]) for n, name in enumerate(names)]
    oids = [20_000 + n for n in range(500)]
    inserts = [p.insert(oid, [str(oid)]) for oid in oids]
    decoder = make_decoder()
    decoded = decode(
        p.begin(1), *relations, *inserts, *[p.truncate(oids)] * 3, p.commit(1, 2), decoder=decoder
    )
    assert decoded.rows.num_rows == 2000
    tables = [decoder.slots[slot].table for (slot,) in rows(decoded, "slot")]
    assert tables == names * 4


def test_a_huge_message_does_not_keep_its_memory() -> None:
    decoder = make_decoder()
    huge = "x" * (KEPT_BYTES + 1)
    decoded = decode(*transaction(p.insert(ORDERS, ["1", huge])), decoder=decoder)
    assert decoder._workspace.capacity < KEPT_BYTES
    decode(*transaction(p.insert(ORDERS, ["2", "x"]), lsn=200, end=220), decoder=decoder)
    assert rows(decoded, "after") == [(["1", huge],)]


MALFORMED: list[tuple[str, str, Sequence[bytes]]] = [
    ("Begin", "short", [p.begin(1)[:-1]]),
    ("Begin", "long", [p.begin(1) + b"x"]),
    ("Begin", "nested", [p.begin(1), p.begin(2)]),
    ("Begin", "lsn_beyond_the_wal", [p.begin(1 << 63)]),
    ("Begin", "time_beyond_the_calendar", [p.begin(1, (1 << 63) - 1)]),
    ("Begin", "time_before_the_calendar", [p.begin(1, -(1 << 62))]),
    ("Commit", "outside", [p.commit(1, 2)]),
    ("Commit", "of_another_transaction", [p.begin(1), p.commit(2, 3)]),
    ("Commit", "short", [p.begin(1), p.commit(1, 2)[:-3]]),
    ("Commit", "ends_before_it_begins", [p.begin(50), p.commit(50, 10)]),
    ("Insert", "outside", [p.insert(1, ["1"])]),
    ("Insert", "unknown_relation", [p.begin(1), p.insert(1, ["1"])]),
    ("Insert", "oid_zero", [p.begin(1), p.insert(0, ["1"])]),
    ("Insert", "one_column_too_few", [p.begin(1), *RELATIONS, p.insert(ORDERS, ["1"])]),
    ("Insert", "only_type", [p.begin(1), *RELATIONS, b"I"]),
    ("Insert", "old_key", [p.begin(1), *RELATIONS, b"I" + p.delete(ORDERS, ["1", "a"])[1:]]),
    ("Update", "no_new_row", [p.begin(1), *RELATIONS, b"U" + p.delete(ORDERS, ["1", "a"])[1:]]),
    ("Delete", "new_row", [p.begin(1), *RELATIONS, b"D" + p.insert(ORDERS, ["1", "a"])[1:]]),
    ("Insert", "trailing", [p.begin(1), *RELATIONS, p.insert(ORDERS, ["1", "a"]) + b"\0"]),
    ("Insert", "value_kind", [p.begin(1), *RELATIONS, p.insert(ORDERS, ["1", None])[:-1] + b"b"]),
    ("Truncate", "outside", [p.truncate([ORDERS])]),
    ("Truncate", "unknown_relation", [p.begin(1), p.truncate([5])]),
    ("Truncate", "count", [p.begin(1), b"T\xff\xff\xff\xff\0"]),
    ("Message", "outside", [p.message("p", b"c", 1)]),
    ("Message", "inside", [p.begin(1), p.message("p", b"c", 1, transactional=False)]),
    ("Message", "lsn_beyond_the_wal", [p.message("p", b"c", 1 << 63, transactional=False)]),
    ("Message", "size", [p.begin(1), p.message("p", b"c", 1)[:-1]]),
    ("Relation", "columns", [p.begin(1), RELATIONS[0][:-2]]),
    ("Relation", "unterminated", [p.begin(1), b"R\0\0\0\1public"]),
    ("Relation", "trailing", [p.begin(1), RELATIONS[0] + b"x"]),
    ("Relation", "oid_zero", [p.begin(1), p.relation(0, "s", "t", ["a"])]),
    ("Type", "unterminated", [p.begin(1), b"Y\0\0\0\1public"]),
    ("Origin", "unterminated", [p.begin(1), b"O\0"]),
    ("empty", "empty", [b""]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "messages"),
    [pytest.param(name, messages, id=f"{name}-{what}") for name, what, messages in MALFORMED],
)
def test_a_malformed_message_is_named(name: str, messages: Sequence[bytes]) -> None:
    with pytest.raises(ProtocolError, match=f"malformed {name} message"):
        decode(*messages)


def test_an_unknown_message_type_is_named() -> None:
    with pytest.raises(ProtocolError, match="unknown message type 'z'"):
        decode(b"z123")


def test_text_that_is_not_utf8_names_the_table_and_not_the_value() -> None:
    bad = p.insert(ORDERS, ["2", "secret"]).replace(b"secret", b"secre\xff")
    with pytest.raises(InvalidText, match=r"public\.orders") as caught:
        decode(*transaction(p.insert(ORDERS, ["1", "ok"]), bad))
    error = caught.value
    assert "secre" not in error.message + error.detail + error.hint


def test_names_that_are_not_utf8_name_the_message() -> None:
    with pytest.raises(InvalidText, match="Relation message"):
        decode(p.begin(1), p.relation(1, "s", "XX", ["a"]).replace(b"XX", b"\xff\xfe"))
    with pytest.raises(InvalidText, match="Message message"):
        decode(p.begin(1), p.message("XX", b"", 1).replace(b"XX", b"\xff\xfe"))
