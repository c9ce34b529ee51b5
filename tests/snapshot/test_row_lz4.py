"""Pages compressed row by row: blocks that any LZ4 reads, and small where rows are alike."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.snapshot.page_codec import PageCodec
from pgtide.snapshot.row_lz4 import compressed
from pgtide.snapshot.text_page import TextPage, text_page

LZ4 = pa.Codec("lz4_raw")


def page_of(rows: list[list[bytes]]) -> TextPage:
    text = b"".join(b"\t".join(row) + b"\n" for row in rows)
    return text_page(np.frombuffer(text, np.uint8), len(rows), len(rows[0]))


def checked(page: TextPage, block: pa.Buffer) -> int:
    """The size of a block that holds the page."""
    assert LZ4.decompress(block, decompressed_size=page.body.size).equals(page.body)
    return block.size


@st.composite
def alike(draw: st.DrawFn) -> list[list[bytes]]:
    """Rows of few different values, so that much repeats itself, also across their ends."""
    width = draw(st.integers(1, 12))
    some = draw(st.lists(st.text("ab", max_size=30), min_size=1, max_size=4))
    value = st.sampled_from([*(text.encode() for text in some), b"\\N", b""])
    return draw(st.lists(st.lists(value, min_size=width, max_size=width), min_size=1, max_size=60))


@settings(max_examples=500, deadline=None)
@given(alike())
def test_any_lz4_reads_it(rows: list[list[bytes]]) -> None:
    page = page_of(rows)
    checked(page, compressed(page))


def test_lengths_at_which_the_format_changes() -> None:
    for same in (*range(24), 254, 255, 256, 269, 270, 271, 65_530, 65_536, 70_000):
        for other in (0, 1, 14, 15, 16, 269, 270, 271):
            values = [
                b"s" * same + random.Random(n).randbytes(other).hex().encode() for n in (1, 2)
            ]
            page = page_of([[b"a", value, b"\\N"] for value in values * 3])
            checked(page, compressed(page))


def test_rows_without_any_value_and_of_no_columns() -> None:
    page = page_of([[b"\\N", b"\\N"]] * 1000)
    assert checked(page, compressed(page)) < 50
    none = text_page(np.frombuffer(b"\n" * 1000, np.uint8), 1000, 0)
    checked(none, compressed(none))


def short_rows() -> list[list[bytes]]:
    rng = random.Random(2)
    states = [b"open", b"paid", b"sent", b"given back"]
    return [
        [
            b"%d" % n,
            rng.choice(states),
            b"customer %d" % rng.randrange(10**6),
            b"%.9f" % rng.random(),
        ]
        for n in range(5_000)
    ]


def documents() -> list[list[bytes]]:
    """Long texts that differ early and have much in common all the same."""
    names = [b"street", b"city", b"country", b"telephone", b"comment", b"reference"]
    rng = random.Random(3)
    return [
        [b"{" + b", ".join(b'"%s": "%d"' % (name, rng.randrange(10**6)) for name in names) + b"}"]
        for _ in range(5_000)
    ]


def test_rows_that_are_alike_become_small() -> None:
    page = page_of(short_rows())
    assert checked(page, compressed(page)) < 1.1 * LZ4.compress(page.body).size


def test_the_first_page_of_a_table_tells_how() -> None:
    codec, short, long = PageCodec(), page_of(short_rows()), page_of(documents())
    for _ in range(2):  # the first page, and those behind it
        assert codec.compress(short, 1).equals(compressed(short))
        assert codec.compress(long, 2).equals(LZ4.compress(long.body))
    assert checked(long, codec.compress(long, 2)) < compressed(long).size / 1.25
