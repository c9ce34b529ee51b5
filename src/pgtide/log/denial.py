"""What an object store refuses for good: wrong keys, a right that is missing, no such bucket.

delta-rs raises every answer of a store as an OSError or a DeltaError that quotes it, below lines of
its own. Whatever is not known here may succeed later: a store that is busy, a network that is down,
a clock that is being set.
"""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[\d*m")
_STATUS = re.compile(r"non-2xx status code\W+(\d{3})\b")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_DENIED = ("401", "403")
# S3 and GCS; S3, of keys that last for a time; Azure.
_WRONG = ("NoSuchBucket", "ExpiredToken", "InvalidToken", "ContainerNotFound")
_PASSING = ("RequestTimeTooSkewed", "SlowDown", "rateLimitExceeded", "userRateLimitExceeded")


def denial(exc: BaseException) -> str | None:
    """The store's answer, without what it quotes of the request; None if it may answer otherwise
    later, or if it is no answer of a store."""
    text = _COLOUR.sub("", str(exc))
    status = _STATUS.search(text)
    if status is None:
        return None
    found = _CODE.search(text, status.end())  # an answer to HEAD has no body
    code = found[1] if found is not None else ""
    if code in _PASSING or not (status[1] in _DENIED or code in _WRONG):
        return None
    return f"The store answered {status[1]} {code}".rstrip() + "."
