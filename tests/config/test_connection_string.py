from __future__ import annotations

import pickle
import traceback

import pytest

from pgtide.config import ConnectionString
from pgtide.errors import ConfigError

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (f"postgresql://app:{SECRET}@db:5433/shop", "postgresql://app@db:5433/shop"),
        (f"postgres://app@db/shop?password={SECRET}", "postgresql://app@db/shop"),
        (f"postgresql://db/shop?sslpassword={SECRET}", "postgresql://db/shop"),
        (f"host=db user=app password={SECRET} dbname=shop", "user=app host=db dbname=shop"),
        (f"host=db password='{SECRET} x'", "host=db"),
        ("service=shop", "service=shop"),
    ],
)
def test_only_reveal_shows_the_password(value: str, shown: str) -> None:
    url = ConnectionString(value)
    assert str(url) == shown
    assert SECRET not in f"{url!r} {url} {url:}"
    assert url.reveal() == value
    assert pickle.loads(pickle.dumps(url)) == url
    assert hash(url) == hash(ConnectionString(value))


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        "",
        f"postgresql://app:{SECRET}@db:port:x/shop",
        f"postgresql://app:{SECRET}%zz@db/shop",
        f"postgresql://db/shop?{SECRET}=1",
        f"host=db {SECRET}",
        f"host=db password='{SECRET}",
        f"mysql://app:{SECRET}@db/shop",
    ],
)
def test_what_libpq_refuses_is_not_repeated(value: str) -> None:
    with pytest.raises(ConfigError, match="not a connection string") as caught:
        ConnectionString(value)
    error = caught.value
    assert SECRET not in "".join([error.message, error.detail, error.hint])
    # Nor does a chained error of libpq, which quotes parts of the string.
    assert SECRET not in "".join(traceback.format_exception(error))
