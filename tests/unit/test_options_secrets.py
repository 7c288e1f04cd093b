"""Options: no secret ever shows, in a value or in an error."""

import dataclasses
import pickle

import pytest

from pyspark_jetstream.values import Secret

from ..kits.options import PARSERS, SECRET, parse, refused


def secretive(tmp_path):
    """Sets of options that hold a secret, each in another place."""
    seed = tmp_path / "seed"
    seed.write_text(SECRET)
    creds = tmp_path / "creds"
    creds.write_text(f"-----BEGIN NATS USER JWT-----\n{SECRET}")
    return [
        {"user": "u", "password": SECRET},
        {"token": SECRET},
        {"credentials": f"-----BEGIN NATS USER JWT-----\n{SECRET}"},
        {"credentialsFile": str(creds)},
        {"nkeySeedFile": str(seed)},
    ]


@pytest.mark.parametrize("kind", PARSERS)
def test_no_secret_shows_in_parsed_options(kind, tmp_path):
    """No `repr`, `str` or `format` of options holds a secret; a task still gets it."""
    for options in secretive(tmp_path):
        parsed = parse(kind, options)
        shown = f"{parsed!r} {parsed} {parsed.connection} {parsed.connection.where}"
        shown += f"{dataclasses.asdict(parsed.connection) | {'servers': None}}"

        assert SECRET not in shown, list(options)
        assert pickle.loads(pickle.dumps(parsed)) == parsed


@pytest.mark.parametrize("kind", PARSERS)
def test_no_secret_shows_in_an_error(kind, tmp_path):
    """No error holds a secret, in its text, its arguments, or pickled."""
    for options in secretive(tmp_path):
        for mistake in ({"requestTimeout": "x"}, {"nonsense": "1"}, {"token": "t", "user": "u"}):
            error = refused(kind, mistake | options)

            for each in (error, pickle.loads(pickle.dumps(error))):
                assert SECRET not in f"{each} {each!r} {each.args}", list(options)
            assert error.__context__ is None or error.__suppress_context__


@pytest.mark.parametrize(
    "servers",
    [
        f"nats://u:pa/{SECRET}@h",
        f"nats://u:{SECRET}/x@h",
        f"u:{SECRET}@no host",
        f"nats://u:p@{SECRET}@h",
        f"nats://u:{SECRET},{SECRET}@h",
        f"http://u:{SECRET}@h",
        f"nats://u:{SECRET}@h:port",
        f"nats://u:{SECRET}@",
        f"nats://u:{SECRET}@h:4222",
        f"{SECRET}@h:4222,nats://x:{SECRET}@i",
    ],
)
def test_a_user_in_a_url_is_refused_and_not_shown(servers):
    """Servers with credentials in them are refused, and not quoted."""
    error = refused("sink", {"servers": servers})

    assert SECRET not in str(error)
    assert "user and password" in str(error)


def test_secret_reveals_only_when_asked():
    """A secret prints as stars, compares and hashes by value, and survives pickling."""
    secret = Secret(SECRET)

    assert f"{secret} {secret!r} {[secret]} %s" % secret == "*** *** [***] ***"
    assert pickle.loads(pickle.dumps(secret)).reveal() == SECRET
    assert secret == Secret(SECRET) and hash(secret) == hash(Secret(SECRET))
    assert secret != SECRET
