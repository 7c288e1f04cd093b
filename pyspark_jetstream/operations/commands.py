"""The programs by their names; the module of one is imported when somebody asks for it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from .. import __version__
from ..errors import JetStreamError, OptionError
from .connecting import spelled
from .screen import plain

_PROGRAMS: Final = {
    "inspect": "inspect.command:inspect",
    "pause": "pause.command:pause",
    "resume": "pause.command:resume",
    "unpin": "pause.command:unpin",
    "partition": "partition.command:partition",
    "throttle": "throttle.command:throttle",
    "metrics": "metrics.command:metrics",
    "explain-mapping": "explain_mapping.command:explain_mapping",
}
"""Module and name of each command."""


_STATUS: Final = (
    "Exit status 0: done; 1: failed, one line says why; 2: wrong arguments; 3: something is wrong"
    " with what was looked at, and the output says what; 130: interrupted."
)


class Programs(click.Group):
    """Imports a program when it is called, and says of an error of ours what is wrong."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PROGRAMS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _PROGRAMS:
            return None
        module, _, attribute = _PROGRAMS[name].partition(":")
        found: click.Command = getattr(import_module(f".{module}", __package__), attribute)
        found.epilog = found.epilog or _STATUS
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        self.commands = dict.fromkeys(_PROGRAMS)  # type: ignore[assignment]  # the nearest is named
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            ctx.exit(super().invoke(ctx) or 0)
        except KeyboardInterrupt:
            ctx.exit(130)
        except OptionError as error:
            raise click.UsageError(plain(spelled(str(error)))) from None
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise click.ClickException("pip install prometheus-client") from None
        except BrokenPipeError:  # `| head` has seen enough; the interpreter would write once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (JetStreamError, OSError) as error:
            raise click.ClickException(plain(spelled(str(error)))) from None


@click.group(
    cls=Programs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="pyspark-jetstream", message="%(prog)s %(version)s")
def programs() -> None:
    """
    Programs for operators of Spark's queries on NATS JetStream.

    Completion in bash, also zsh and fish:

    \b
    eval "$(_PYSPARK_JETSTREAM_COMPLETE=bash_source pyspark-jetstream)"
    """
