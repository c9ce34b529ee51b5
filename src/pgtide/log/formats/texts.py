"""Reading Postgres texts: arrays, dates, times and intervals as the log's session prints them.

The settings are pinned at capture (ISO dates, UTC, ``IntervalStyle=postgres``, hex bytea), so
there is one spelling of each. Years go beyond what Python's ``datetime`` can hold.
"""

from __future__ import annotations

import re

MOST_DIGITS = 4_000  # of a number: Python refuses to convert longer ones, Postgres does not
_DAY_US = 86_400_000_000
_TIMESTAMP = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d+)?))?(?:\+00)?( BC)?")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_ZONE = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?$")
_UNIT = re.compile(r"([+-]?\d+) (year|mon|day)s?")
_CLOCK = re.compile(r"([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?$")
_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}]+)')


def parse_array(text: str) -> list[str | None] | None:
    """The items of a one-dimensional array with the usual bounds, None for any other."""
    if not text.startswith("{") or not text.endswith("}"):
        return None
    items: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        match = _ITEM.match(text, at, end)
        if match is None:
            return None
        quoted, plain = match.groups()
        if quoted is not None:
            items.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.S))
        else:
            items.append(None if plain == "NULL" else plain)
        at = match.end() + 1
    return items


def days(text: str) -> int | None:
    """A date as days since 1970, None for ±infinity."""
    micros = microseconds(text)
    return None if micros is None else micros // _DAY_US


def microseconds(text: str) -> int | None:
    """A date or timestamp (UTC) as microseconds since 1970, None for ±infinity."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    year = int(match[1])
    if match[5]:
        year = 1 - year
    return _days_from_civil(year, int(match[2]), int(match[3])) * _DAY_US + clock(match[4] or "")


def clock(text: str) -> int:
    """A time of day as microseconds."""
    match = _TIME.match(text)
    if match is None:
        return 0
    hours, minutes, seconds, fraction = match.groups()
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole * 1_000_000 + int((fraction or "").ljust(6, "0"))


def clock_utc(text: str) -> int:
    """A time with zone as microseconds of the day in UTC."""
    match = _ZONE.search(text)
    offset = 0
    if match is not None:
        sign, hours, minutes, seconds = match.groups()
        offset = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
        offset = -offset if sign == "-" else offset
    return (clock(text) - offset * 1_000_000) % _DAY_US


def interval(text: str) -> tuple[int, int, int] | None:
    """An interval as months, days and microseconds; None for ±infinity."""
    if "infinity" in text:
        return None
    months = number_of_days = micros = 0
    for number, unit in _UNIT.findall(text):
        if unit == "day":
            number_of_days = int(number)
        else:
            months += int(number) * (12 if unit == "year" else 1)
    match = _CLOCK.search(text)
    if match is not None:
        sign, hours, minutes, seconds, fraction = match.groups()
        whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        micros = whole * 1_000_000 + int((fraction or "").ljust(6, "0"))
        micros = -micros if sign == "-" else micros
    return months, number_of_days, micros


def _days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, for any year."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468
