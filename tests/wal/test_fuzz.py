"""Bytes that are not what the protocol says: a typed error or a row, nothing else."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgtide.capture import libpq
from pgtide.errors import ProtocolError
from pgtide.log.event import UNCHANGED
from pgtide.position import Lsn
from pgtide.wal.decoder import Decoder
from tests.wal import pgoutput as p

OID = 16_384
VALID = [
    p.begin(100),
    p.relation(OID, "public", "orders", ["id", "note"]),
    p.type_name(77, "public", "mood"),
    p.origin("elsewhere"),
    p.insert(OID, ["1", "grün"]),
    p.update(OID, ["1", UNCHANGED], ["0", None]),
    p.update(OID, ["1", "x"], ["0", "y"], "O"),
    p.delete(OID, ["1", None]),
    p.truncate([OID], restart=True),
    p.message("app", b"content", 90),
    p.commit(100, 120),
    p.message("app", b"content", 130, transactional=False),
    p.begin(140),
    p.commit(140, 150),
]


def decode_or_refuse(messages: list[bytes]) -> None:
    decoder = Decoder(p.SmallCatalog(), resume=Lsn(0))
    try:
        decoder.decode(p.chunk_of(messages, gap=3)).rows.validate(full=True)
    except ProtocolError as error:
        named = "message" in error.message or "UTF-8" in error.message
    else:
        named = True
    assert named, "the error names the message"


def test_every_truncation_of_every_message() -> None:
    for index, message in enumerate(VALID):
        for size in range(len(message)):
            decode_or_refuse([*VALID[:index], message[:size], *VALID[index + 1 :]])


def test_every_byte_of_every_message_changed() -> None:
    generator = random.Random(20)
    for index, message in enumerate(VALID):
        for at in range(len(message)):
            for value in {0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)}:
                changed = message[:at] + bytes([value]) + message[at + 1 :]
                decode_or_refuse([*VALID[:index], changed, *VALID[index + 1 :]])


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(VALID),
            st.binary(max_size=60),
            st.builds(
                lambda kind, rest: kind + rest,
                st.sampled_from([b"B", b"C", b"I", b"U", b"D", b"R", b"Y", b"T", b"M", b"O"]),
                st.binary(max_size=80),
            ),
        ),
        max_size=20,
    )
)
@example([p.begin(100), p.relation(OID, "s", "t", [f"c{n}" for n in range(1600)]), b"I" * 40])
def test_random_messages_in_any_order(messages: list[bytes]) -> None:
    decode_or_refuse(messages)


def register(frame: bytes, *, streaming: bool, header: int = 0) -> tuple[bool, list[bytes]]:
    """Hand one frame to the compiled registration; the messages that it found."""
    state = np.zeros(libpq.STATE_SIZE, np.int64)
    state[libpq.HEADER] = header
    buffer = np.frombuffer(frame + b"\xaa" * 32, np.uint8).copy()
    starts, ends = np.zeros(4, np.int64), np.zeros(4, np.int64)
    function = libpq._streamed if streaming else libpq._copied
    where = [array.ctypes.data for array in (buffer, starts, ends, state)]
    good = bool(function(where[0], where[0], len(frame), *where[1:]))
    count = int(state[libpq.COUNT])
    for start, end in zip(starts[:count], ends[:count], strict=True):
        assert 0 <= start <= end <= len(frame)
    return good, [frame[starts[i] : ends[i]] for i in range(count)]


XLOG = b"w" + bytes(24)
KEEPALIVE = b"k" + bytes(16) + b"\x01"
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_ROW = b"\0\1" + b"\0\0\0\3" + b"abc"
COPY_TRAILER = b"\xff\xff"


def test_frames_as_the_protocol_says() -> None:
    assert register(XLOG + b"abc", streaming=True) == (True, [b"abc"])
    assert register(KEEPALIVE, streaming=True) == (True, [])
    assert register(COPY_ROW, streaming=False) == (True, [b"abc"])
    assert register(COPY_HEADER + COPY_ROW, streaming=False, header=1) == (True, [b"abc"])
    assert register(COPY_HEADER, streaming=False, header=1) == (True, [])
    assert register(COPY_HEADER + COPY_TRAILER, streaming=False, header=1) == (True, [])
    assert register(COPY_TRAILER, streaming=False) == (True, [])


def test_malformed_frames_are_refused() -> None:
    for size in range(len(XLOG)):
        assert not register(XLOG[:size], streaming=True)[0], size
    for size in [*range(len(KEEPALIVE)), len(KEEPALIVE) + 1]:
        assert not register((KEEPALIVE + b"x")[:size], streaming=True)[0], size
    assert not register(b"x" + bytes(30), streaming=True)[0]
    for size in range(len(COPY_ROW)):
        assert not register(COPY_ROW[:size], streaming=False)[0], size
    assert not register(COPY_ROW + b"x", streaming=False)[0]
    assert not register(b"\0\2" + COPY_ROW[2:], streaming=False)[0]
    assert not register(b"\0\1" + b"\xff\xff\xff\xff", streaming=False)[0]  # NULL
    assert not register(COPY_TRAILER + b"x", streaming=False)[0]
    for size in range(len(COPY_HEADER)):
        assert not register(COPY_HEADER[:size], streaming=False, header=1)[0], size
    assert not register(b"X" + COPY_HEADER[1:], streaming=False, header=1)[0]
    extension = COPY_HEADER[:15] + b"\0\0\0\4" + b"more" + COPY_ROW
    assert not register(extension, streaming=False, header=1)[0]


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80), st.booleans(), st.integers(0, 1))
def test_random_frames_stay_inside_themselves(frame: bytes, streaming: bool, header: int) -> None:
    register(frame, streaming=streaming, header=header)
