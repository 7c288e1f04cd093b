"""Hostile bytes against a slow reference: what once broke, and what hypothesis finds."""

import logging

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from ..fuzz import KINDS, asking
from ..fuzz.corpus import CASES
from ..kits.seeds import examples


@pytest.fixture(autouse=True, scope="module")
def _no_log():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_what_once_broke():
    """The package makes of each case what the reference makes of it."""
    for name, case in CASES.items():
        try:
            KINDS[case.kind].check(case)
        except AssertionError as error:
            raise AssertionError(name) from error


def test_real_answers_are_understood():
    """Each answer of a real server's API is a value."""
    asking.check_recorded()


@pytest.mark.parametrize("kind", KINDS)
@examples(300)
@given(rng=st.randoms(use_true_random=False))
def test_whatever_comes(kind, rng):
    """No row, no error and no place differs from the reference's, however the bytes come."""
    case = KINDS[kind].case(rng)
    note(repr(case))
    KINDS[kind].check(case)
