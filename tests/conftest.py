"""Fixtures live in plugins, one file per thing they provide."""

pytest_plugins = ["tests.fixtures.postgres"]
