"""Where the log of this package goes: to stderr in full lines, or where a program wants it."""

import re
import subprocess
import sys

import pytest

from ..kits.places import ROOT

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (?P<level>[A-Z]+)"
    r" query=(?P<query>.+) batch=(?P<batch>\S+) task=(?P<task>\S+)"
    r" (?P<logger>pyspark_jetstream[\w.]*): (?P<text>.*)"
)
"""A line as documented: time, level, query, batch, task, module, text."""

BEGIN = """
import logging
from pyspark_jetstream.worker import log_for
from pyspark_jetstream.sanitize import get_logger
logger = get_logger("pyspark_jetstream.some.module")
others = logging.getLogger("somebody.else")
"""


def said(*program):
    """What a process of its own has written to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + "\n".join(program)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stderr.splitlines()


def lines(*program):
    """Level, query, batch, task and text of each line, all of which are ours."""
    matched = [(line, LINE.fullmatch(line)) for line in said(*program)]
    assert all(match for _, match in matched), matched
    return [match.group("level", "query", "batch", "task", "text") for _, match in matched if match]


def test_a_line_says_when_how_bad_and_whose():
    """Time, level, query, batch and task, with the level that was asked for."""
    assert lines(
        "log_for('info', 'orders by day', 7)",
        "logger.debug('no'); logger.info('counts'); logger.warning('full')",
        "log_for('error')",
        "logger.warning('no'); logger.error('bad')",
    ) == [
        ("INFO", "orders by day", "7", "driver", "counts"),
        ("WARNING", "orders by day", "7", "driver", "full"),
        ("ERROR", "-", "-", "driver", "bad"),
    ]


def test_a_name_writes_no_lines_of_its_own():
    """What a user calls a query is text of others: one line, and no escape of a terminal."""
    ((_, query, *_),) = lines("log_for('info', 'a\\nb\\x1b[2J')", "logger.info('counts')")

    assert query == r"a\nb\x1b[2J"


def test_a_query_without_a_level_has_what_python_says():
    """Warnings without `logLevel`, in a process that served a query with one before, too."""
    told = lines(
        "log_for('debug'); logger.debug('a')",
        "log_for(None); logger.info('b'); logger.warning('c')",
        "logger.setLevel('INFO'); log_for(None); logger.info('d')",
    )

    assert [text for *_, text in told] == ["a", "c", "d"]


def test_nothing_else_of_the_process_is_touched():
    """The root logger, and those of others, have their levels and handlers; imports do nothing."""
    assert said(
        "import pyspark_jetstream.datasource",
        "root, ours = logging.getLogger(), logging.getLogger('pyspark_jetstream')",
        "assert not ours.handlers and ours.level == logging.NOTSET and ours.propagate",
        "log_for('debug', 'q')",
        "assert not root.handlers and root.level == logging.WARNING and ours.propagate",
        "assert not others.isEnabledFor(logging.INFO)",
        "others.warning('as ever')",
    ) == ["as ever"]


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("where", ["", "pyspark_jetstream"])
def test_who_has_set_logging_up_gets_the_lines_alone(order, where):
    """Once each, in their own form, which may name query, batch and task."""
    setup = (
        f"handler = logging.StreamHandler(); logging.getLogger('{where}').addHandler(handler);"
        "handler.setFormatter(logging.Formatter('%(query)s/%(batch)s/%(task)s %(message)s'))"
    )
    begin = "log_for('info', 'orders', 7)"
    program = (setup, begin) if order == "before" else (begin, setup)

    assert said(*program, "logger.info('full')") == ["orders/7/driver full"]


def test_a_level_of_others_comes_back():
    """A level that somebody has set is there again once a query without one of its own runs."""
    assert lines(
        "logging.getLogger('pyspark_jetstream').setLevel('ERROR')",
        "log_for('info'); logger.info('counts'); log_for('debug'); log_for(None)",
        "logger.warning('no'); logger.error('bad')",
    ) == [("INFO", "-", "-", "driver", "counts"), ("ERROR", "-", "-", "driver", "bad")]
