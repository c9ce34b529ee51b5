"""Fixtures live in plugins, one file per thing they provide."""

pytest_plugins = [
    "tests.fixtures.capture",
    "tests.fixtures.postgres",
    "tests.fixtures.proxy",
    "tests.fixtures.s3",
    "tests.fixtures.spark",
]
