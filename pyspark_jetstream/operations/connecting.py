"""
The connection of the programs: a flag for each option, and where else its value comes from.

The first of these that says anything counts: a flag; a variable of the environment, those of the
`nats` command among them; the file of `--config`; a context of the `nats` command. The context that
is selected there counts only where nothing else names servers: its login is for its servers.

A secret is never taken from the command line, where every user of the machine could read it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import closing
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import click

from .. import values as value_of
from ..client.connection import Client
from ..client.options import CONNECTION_OPTIONS, ConnectionOptions, parse_connection
from ..option import Option
from ..worker import log_for

Program = Callable[..., Any]

_NATS: Final = {
    "servers": ("NATS_URL", "url"),
    "user": ("NATS_USER", "user"),
    "password": ("NATS_PASSWORD", "password"),
    "token": ("NATS_TOKEN", "token"),
    "credentialsFile": ("NATS_CREDS", "creds"),
    "nkeySeedFile": ("NATS_NKEY", "nkey"),
    "tlsCertFile": ("NATS_CERT", "cert"),
    "tlsKeyFile": ("NATS_KEY", "key"),
    "tlsCaFile": ("NATS_CA", "ca"),
    "tlsHandshakeFirst": ("", "tls_first"),
    "inboxPrefix": ("", "inbox_prefix"),
    "jsDomain": ("", "jetstream_domain"),
    "jsApiPrefix": ("", "jetstream_api_prefix"),
}
"""By option, the variable and the member of a context by which the `nats` command has it."""

_LOGIN: Final = ("user", "password", "token", "credentialsFile", "credentials", "nkeySeedFile")
_UNSUPPORTED: Final = ("nsc", "user_jwt", "socks_proxy")
"""Members of a context by which we cannot reach or enter a server."""


def _flag_of(name: str) -> str:
    return "--" + "".join(f"-{c.lower()}" if c.isupper() else c for c in name)


FLAGS: Final = {option.name: _flag_of(option.name) for option in CONNECTION_OPTIONS}


def connects(program: Program) -> Program:
    """A program with the connection's flags; it is called with the options as `connection`."""

    @wraps(program)
    def connected(context: str | None, config: str | None, **given: Any) -> Any:
        words = {name: given.pop(_dest(name)) for name in FLAGS}
        options = parse_connection(_login({n: str(v) for n, v in words.items() if v}, context))
        if options.log_level:
            log_for(options.log_level)
        return program(connection=options, **given)

    run: Program = connected
    for option in reversed(CONNECTION_OPTIONS):
        run = _flag(option)(run)
    run = click.option(
        "--context", envvar="NATS_CONTEXT", metavar="NAME", help="A context of the nats command."
    )(run)
    return click.option(
        "--config", type=click.Path(exists=True, dir_okay=False), is_eager=True,
        callback=_configured, help="TOML with values, by the names of these flags.",
    )(run)  # fmt: skip


def client_of(options: ConnectionOptions) -> closing[Client]:
    """A client of its own, closed at the end of a `with`."""
    return closing(Client(options, at_start=True))


def spelled(text: str) -> str:
    """A text that names options by their flags, secrets by their variables."""
    named = FLAGS | {o.name: f"${_variables(o)[0]}" for o in CONNECTION_OPTIONS if o.secret}

    def word(found: re.Match[str]) -> str:
        name = found[2] or found[3]
        return named.get(name) or (_flag_of(name) if found[1] == "option '" else found[0])

    return re.sub(r"(options? '?)(\w+)'?|`?\b([a-z]+[A-Z]\w*)\b`?", word, text)


def _flag(option: Option) -> Callable[[Program], Program]:
    return click.option(
        FLAGS[option.name], _dest(option.name), envvar=_variables(option), metavar="…",
        hidden=option.secret, callback=_not_typed if option.secret else None,
        help=spelled(option.doc).replace("`", "")
        + (f" Default: {option.default}" * bool(option.default)),
    )  # fmt: skip


def _dest(name: str) -> str:
    return FLAGS[name].removeprefix("--").replace("-", "_")


def _variables(option: Option) -> list[str]:
    ours = f"JETSTREAM_{option.name.upper()}"
    return [ours, theirs] if (theirs := _NATS.get(option.name, ("",))[0]) else [ours]


def _not_typed(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    source = ctx.get_parameter_source(str(param.name))
    if source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(
            f"{param.opts[0]}: everybody on the machine can read a command line: use"
            f" ${param.envvar[0] if param.envvar else ''}"
        )
    return value


def _configured(ctx: click.Context, param: click.Parameter, path: str | None) -> str | None:
    """Makes the values of a file the defaults of this program."""
    if path is None:
        return None
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}") from None
    known = [str(each.name).replace("_", "-") for each in ctx.command.params]
    for name in content:
        if name not in known:
            near = "".join(f": did you mean {each}?" for each in get_close_matches(name, known, 1))
            raise click.BadParameter(f"{path}: unknown setting '{name}'{near}")
    ctx.default_map = {name.replace("-", "_"): value for name, value in content.items()}
    return path


def _login(given: Mapping[str, str], context: str | None) -> dict[str, str]:
    """All options: those that were given, and what of the context they leave open."""
    words = dict(given)
    if "servers" not in words or context:
        theirs = _context(context)
        if any(name in words for name in _LOGIN):
            theirs = {name: value for name, value in theirs.items() if name not in _LOGIN}
        words = theirs | words
    return _without_user(words)


def _context(name: str | None) -> dict[str, str]:
    """A context of the `nats` command; without a name the selected one, or none."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nats"
    if name is None:
        try:
            name = (home / "context.txt").read_text(encoding="utf-8").strip()
        except OSError:
            return {}
    if not name:
        return {}
    path = home / "context" / f"{name}.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"context '{name}': {path}: {error}") from None
    for member in _UNSUPPORTED:
        if said.get(member):
            raise click.UsageError(f"context '{name}': '{member}' is not supported here")
    words = {option: said.get(member) for option, (_, member) in _NATS.items()}
    return {
        option: "true" if value is True else os.path.expandvars(os.path.expanduser(str(value)))
        for option, value in words.items()
        if value
    }


def _without_user(words: dict[str, str]) -> dict[str, str]:
    """A login in the servers' URLs, as $NATS_URL may have it, becomes options."""
    servers = []
    for url in words.get("servers", "").split(","):
        scheme, sep, rest = url.strip().rpartition("://")
        login, at, host = rest.rpartition("@")
        user, colon, password = login.partition(":")
        if at and not any(name in words for name in _LOGIN):
            words = words | ({"user": unquote(user), "password": unquote(password)} if colon
                             else {"token": unquote(user)})  # fmt: skip
        servers.append(f"{scheme}{sep}{host}")
    return words | ({"servers": ",".join(servers)} if "servers" in words else {})


class Kind(click.ParamType[Any]):
    """A type of argument by a function that raises ValueError for what is none."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SECONDS: Final = Kind("time", lambda text: value_of.duration(text, "s"))
"""A duration; a number without a unit is one of seconds."""
