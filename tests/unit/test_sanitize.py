"""What others wrote as people see it: escaped, without our secrets, wherever it is shown."""

import inspect
import json
import logging
import pickle

import nkeys
import pytest

from pyspark_jetstream.errors import JetStreamError, RowError
from pyspark_jetstream.sanitize import conceal, get_logger, sanitized

from ..kits.logins import creds_of, jwt, keys
from .test_errors import CLASSES
from .test_layers import HOUSE, calls

EVIL = "\x1b]0;pwned\x07\x1b[2J\x00\x7f\x9b31m\u202eevil\u2066\u2029\r\nline\ud800"
"""Text that steers a terminal, turns the reading direction, ends lines, and has no encoding."""
SEED = keys(nkeys.PREFIX_BYTE_USER)[1]
JWT = jwt(keys(nkeys.PREFIX_BYTE_ACCOUNT), "U", "ann", {})

VALUES = {
    "password": 'hunter2-un"mist\\akable-ü',
    "token": "tok3n-unmistakable-%{}'",
    "of twelve": "pa\"s\\wörd'12",
    "of eight": "ei9htlng",
    "short": "s3kr!t",
    "of four": "f0ur",
}


@pytest.fixture(autouse=True)
def told():
    """A server was told each of them."""
    for secret in (*VALUES.values(), ""):
        conceal(secret)


def assert_plain(text, lines=False):
    """Nothing in it steers a terminal; `lines` may end in it where a program ends them."""
    for line in text.split("\n") if lines else [text]:
        assert line.isprintable(), repr(line)


def greeting(member, value, **how):
    said = {"verbose": False, "user": "ann", member: value, "lang": "python3"}
    return f"CONNECT {json.dumps(said, **how)}"


FORMS = {
    "as it came": lambda text, value: text,
    "in quotes": lambda text, value: f"'you said \"{text}\"'",
    "quoted once more": lambda text, value: json.dumps(text),
    "quoted twice more": lambda text, value: json.dumps(json.dumps(text)),
    "as Python shows it": lambda text, value: repr(json.loads(text.partition(" ")[2])),
    "its bytes as Python shows them": lambda text, value: repr(text.encode()),
    "cut off in the value": lambda text, value: text[: text.index('", "lang"') - 1],
    "cut off in the value, quoted": lambda text, value: json.dumps(
        text[: text.index('", "lang"') - 1]
    )[:-1],
    "the value alone": lambda text, value: value,
    "the value amid others": lambda text, value: f"x={value};ann:{value}@host,{value}",
    "the value as JSON": lambda text, value: json.dumps(value),
    "the value as JSON with letters": lambda text, value: json.dumps(value, ensure_ascii=False),
    "the value as bytes": lambda text, value: repr(value.encode()),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("member", ["pass", "auth_token"])
def test_a_secret_is_masked_in_whatever_form(member, form):
    """By its value and by the member of the CONNECT that has it; what stands around it stays."""
    for secret in VALUES.values():
        seen = sanitized(FORMS[form](greeting(member, secret), secret))

        assert secret not in seen and json.dumps(secret)[1:-1] not in seen
        assert secret[:4] not in seen
        assert "***" in seen


@pytest.mark.parametrize("member", ["pass", "auth_token", "jwt", "sig", "nkey"])
def test_a_secret_that_nobody_concealed_is_masked_by_its_place(member):
    """Another process may have told it."""
    text = greeting(member, "unheard-of")
    assert sanitized(text) == greeting(member, "***")
    assert "unheard" not in sanitized(json.dumps(text)) + sanitized(repr(text.encode()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"bad {JWT}, sorry", "bad ***, sorry"),
        (f"bad {JWT[:60]}…", "bad ***…"),
        (f"bad {SEED}, sorry", "bad ***, sorry"),
        ("nats://ann:pw@h:4222, tls://tok@h", "nats://***@h:4222, tls://***@h"),
        ("user@host, nats://h:4222/a@b", "user@host, nats://h:4222/a@b"),
        ("stream SCANNEDDOCUMENTSARCHIVE", "stream SCANNEDDOCUMENTSARCHIVE"),
        ('{"password_file": "x", "user": "ann"}', '{"password_file": "x", "user": "ann"}'),
    ],
    ids=["jwt", "beginning", "seed", "userinfo", "none", "word", "file"],
)
def test_secrets_have_shapes(text, shown):
    """A JWT, also cut off, an nkey seed, what stands before the @ of a URL; nothing else."""
    assert sanitized(text) == shown


def test_a_credentials_file_is_masked():
    """Both that it holds."""
    shown = sanitized(creds_of(JWT, SEED))
    assert JWT[:20] not in shown and SEED[:20] not in shown


def test_a_secret_that_may_be_a_word_masks_no_other():
    """A short secret masks no word that it is a part of."""
    for secret in ("inflammable", "te5t", "spark", "a1b"):
        conceal(secret)

    assert sanitized("inflammables, inflammable: 'te5t' late5t spark a1b") == (
        "inflammables, ***: '***' late5t spark a1b"
    )
    assert sanitized(greeting("pass", "spark")) == greeting("pass", "***")


def test_what_cannot_be_printed_is_escaped():
    """Controls, line ends, reading directions and halves of surrogate pairs; all in one line."""
    assert sanitized("ä ☂ \ufffd, a=b") == "ä ☂ \ufffd, a=b"
    assert sanitized("\x1b[31m\x00\x7f\x9b\r\n\u202e\ud800") == (
        r"\x1b[31m\x00\x7f\x9b\r\n\u202e\ud800"
    )
    assert sanitized(sanitized(EVIL)) == sanitized(EVIL)
    assert_plain(sanitized(EVIL))


# ── errors ───────────────────────────────────────────────────────────────────────────────────


def filled(kind, text):
    """An error of this kind, with this text wherever one may stand."""
    made = next(each for each in kind.__mro__ if "__init__" in vars(each))
    if made is JetStreamError:
        bases = [each for each in reversed(kind.__mro__) if issubclass(each, JetStreamError)]
        taken = [hint for each in bases for hint in each.__annotations__.values()]
    else:
        taken = [each.annotation for each in inspect.signature(made).parameters.values()]
    by_type = {"str": text, "int": 7, "float": 7.0, "tuple[str, ...]": (text, text)}
    given = [by_type[each] for each in taken if each in by_type]
    return kind(*(given or [text]))


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_one_plain_line(kind):
    """Whatever its fields hold, and after pickling; the fields keep it as it came."""
    error = filled(kind, f"{EVIL}, {VALUES['password']}")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert_plain(str(each))
        assert VALUES["password"] not in str(each) and "pwned" in str(each)


def test_fields_of_an_error_stay_as_they_are():
    """A program that goes by them meets what was stored."""
    assert RowError(EVIL, "x").subject == EVIL


# ── the log ──────────────────────────────────────────────────────────────────────────────────


def test_the_log_says_it_plainly(caplog):
    """Arguments of all kinds, in both formats, stay readable; numbers stay numbers."""
    logger = get_logger("pyspark_jetstream.test")
    secret = VALUES["password"]
    with caplog.at_level(logging.DEBUG, "pyspark_jetstream"):
        logger.info("%s %r %d %.1f %s", EVIL, EVIL, 7, 0.5, JetStreamError(EVIL))
        logger.info("%(a)s", {"a": EVIL})
        logger.info("%d", EVIL)
        logger.info("%s, %r, %s", secret, [secret], b"\x1b")
        try:
            raise KeyError(secret) from ValueError(EVIL)
        except KeyError:
            logger.warning("failed", exc_info=True)

    assert " 7 0.5 " in caplog.records[0].getMessage()
    for record in caplog.records:
        assert_plain(record.getMessage())
    text = logging.Formatter("%(message)s").format(caplog.records[-1])
    assert "Traceback" in text and "\n" in text and "pwned" in text
    assert_plain(text, lines=True)
    seen = text + "".join(record.getMessage() for record in caplog.records)
    assert secret not in seen and json.dumps(secret)[1:-1] not in seen


def test_there_is_one_way_into_the_log():
    """No module takes a logger but by `get_logger`, nor warns, which people would see as well."""
    for module in HOUSE:
        found = calls(HOUSE[module])

        if module not in ("sanitize", "worker"):
            assert "logging.getLogger" not in found, module
        warns = {"warnings.warn", "logging.warning", "logging.error", "logging.info"}
        assert not found & warns, module
