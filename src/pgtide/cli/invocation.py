"""What one call of ``pgtide`` was told globally, and the options that say it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from pgtide.cli.rendering import configure_logging

if TYPE_CHECKING:
    from pgtide.config import Config

DEFAULT_CONFIG = Path("pgtide.yaml")


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@dataclass
class Invocation:
    """The global options. Commands get it by ``ctx.ensure_object(Invocation)``."""

    config_path: Path | None = None
    json: bool = False
    log_level: str = LogLevel.info

    @cached_property
    def config(self) -> Config:
        """The configuration, read at first use: not every command has one."""
        # pydantic and YAML cost more than --help may take.
        from pgtide.config import load
        from pgtide.config.loading import has_overrides

        path = self.config_path or DEFAULT_CONFIG
        if self.config_path is None and not path.exists() and has_overrides():
            return load(None)
        return load(path)


def _set_config(ctx: typer.Context, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(Invocation).config_path = value


def _set_json(ctx: typer.Context, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).json = True


def _set_log_level(ctx: typer.Context, value: LogLevel | None) -> None:
    if value is not None:
        ctx.ensure_object(Invocation).log_level = value
        configure_logging(value)


def _declare(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Configuration file [default: pgtide.yaml]",
            callback=_set_config,
            expose_value=False,
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON.", callback=_set_json, expose_value=False),
    ] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level",
            help="What is logged to stderr [default: info]",
            callback=_set_log_level,
            expose_value=False,
        ),
    ] = None,
) -> None:
    """Never called: its signature is where typer takes the global options from."""


def global_options() -> list[Any]:
    """A fresh set of the options, to add to a command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(_declare)
    return list(get_command(app).params)
