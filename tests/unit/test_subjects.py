"""Subjects and filters, without a server."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream import subjects

from ..kits.seeds import examples

ALPHABET = ("a", "b", "*", ">")
"""Tokens small enough to enumerate every filter and every subject up to three tokens."""

FILTERS = [
    ".".join(parts)
    for length in (1, 2, 3)
    for parts in itertools.product(ALPHABET, repeat=length)
    if ">" not in parts[:-1]
]
SUBJECTS = [
    ".".join(parts) for length in (1, 2, 3, 4) for parts in itertools.product("abc", repeat=length)
]


@pytest.mark.parametrize(
    ("filter", "subject", "expected"),
    [
        pytest.param("a.b", "a.b", True, id="literal"),
        pytest.param("a.b", "a.B", False, id="case-matters"),
        pytest.param("a.b", "a.b.c", False, id="literal-is-no-prefix"),
        pytest.param("a.*", "a.b", True, id="star"),
        pytest.param("a.*", "a", False, id="star-needs-a-token"),
        pytest.param("a.*", "a.b.c", False, id="star-is-one-token"),
        pytest.param("a.>", "a.b.c", True, id="rest"),
        pytest.param("a.>", "a", False, id="rest-needs-a-token"),
        pytest.param(">", "a", True, id="everything"),
        pytest.param("*.*.>", "a.b", False, id="star-star-rest-needs-three"),
        pytest.param("a.*", "a.", False, id="star-never-matches-empty"),
        pytest.param(">", "a..b", False, id="rest-never-matches-empty"),
        pytest.param("a*.b", "ax.b", False, id="star-inside-a-token-is-literal"),
        pytest.param("a*.b", "a*.b", True, id="literal-star"),
        pytest.param("a+.*", "aa.b", False, id="regex-characters-are-literal"),
        pytest.param("ключ.*", "ключ.é", True, id="unicode"),
        pytest.param("a.*", "a.b\n", True, id="newline-is-for-check_subject"),
    ],
)
def test_matches(filter, subject, expected):
    """A filter selects the subjects the server would select with it."""
    assert subjects.matches(filter, subject) is expected
    assert subjects.matcher(filter)(subject) is expected


def test_covers_is_inclusion_and_overlaps_is_intersection():
    """For every pair of small filters both agree with the sets of matched subjects."""
    matched = {f: {s for s in SUBJECTS if subjects.matches(f, s)} for f in FILTERS}

    for a, b in itertools.product(FILTERS, repeat=2):
        assert subjects.covers(a, b) is (matched[b] <= matched[a]), (a, b)
        assert subjects.overlaps(a, b) is bool(matched[a] & matched[b]), (a, b)


def test_specificity_orders_narrow_before_wide():
    """A filter that another one covers sorts before it, however the two are written."""
    for narrow, wide in itertools.permutations(FILTERS, 2):
        if subjects.covers(wide, narrow):
            assert subjects.specificity(narrow) < subjects.specificity(wide), (narrow, wide)


def test_equal_specificity_means_disjoint():
    """Two different filters of equal specificity have no subject in common, so order is total."""
    for a, b in itertools.combinations(FILTERS, 2):
        if subjects.specificity(a) == subjects.specificity(b):
            assert not subjects.overlaps(a, b), (a, b)


@pytest.mark.parametrize(
    ("filter", "literal", "rest", "positions"),
    [
        pytest.param("a.b", True, False, (), id="literal"),
        pytest.param("a.*.b.*", False, False, (1, 3), id="stars"),
        pytest.param("*.>", False, True, (0,), id="star-rest"),
        pytest.param(">", False, True, (), id="everything"),
        pytest.param("a*.b>", True, False, (), id="wildcards-inside-tokens"),
    ],
)
def test_shape(filter, literal, rest, positions):
    """Only whole tokens count as wildcards."""
    assert subjects.is_literal(filter) is literal
    assert subjects.has_rest(filter) is rest
    assert subjects.wildcard_positions(filter) == positions


@pytest.mark.parametrize("filter", ["a.b", "a.b.|*.c", "a.|>", "|*.a", "a*.|*"])
def test_the_literal_beginning(filter):
    """Whole tokens, with the dot behind them, up to the first that is a wildcard."""
    assert subjects.literal_beginning(filter.replace("|", "")) == filter.partition("|")[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("", "the subject is empty", id="empty"),
        pytest.param(".a", "token 1 is empty", id="leading-dot"),
        pytest.param("a..b", "token 2 is empty", id="double-dot"),
        pytest.param("a.", "token 2 is empty", id="trailing-dot"),
        pytest.param("a.b c", "token 2 'b c' contains white space", id="space"),
        pytest.param("a.\t", "token 2 '\\t' contains white space", id="tab"),
        pytest.param("a.b\r\n", "token 2 'b\\r\\n' contains white space", id="line-end"),
        pytest.param("\x00.a", "token 1 '\\x00' contains the control character '\\x00'", id="nul"),
        pytest.param(
            "a.b\ud800.c",
            "token 2 'b\\ud800' contains a lone surrogate, which has no UTF-8 form",
            id="surrogate",
        ),
    ],
)
def test_malformed_text_is_neither_subject_nor_filter(text, fault):
    """A malformed text is refused as subject and as filter, naming the token at fault."""
    with pytest.raises(ValueError) as as_subject:
        subjects.check_subject(text)
    with pytest.raises(ValueError) as as_filter:
        subjects.check_filter(text)

    assert str(as_subject.value) == f"invalid subject {text!r}: {fault}"
    assert str(as_filter.value) == f"invalid subject filter {text!r}: {fault}"


@pytest.mark.parametrize(
    ("text", "as_subject", "as_filter"),
    [
        pytest.param("a.b", True, True, id="literal"),
        pytest.param("$JS.API", True, True, id="dollar"),
        pytest.param("a\u00a0b.ключ", True, True, id="unicode"),
        pytest.param("a*.>b", True, True, id="wildcards-inside-tokens"),
        pytest.param("a.*", False, True, id="star"),
        pytest.param("a.>", False, True, id="rest"),
        pytest.param("a.>.b", False, False, id="rest-in-the-middle"),
    ],
)
def test_wildcards_belong_to_filters(text, as_subject, as_filter):
    """A publish subject has no wildcard; a filter has `>` as its last token only."""
    assert (subjects.subject_fault(text) is None) is as_subject
    assert (subjects.filter_fault(text) is None) is as_filter


def test_wildcard_subject_names_the_token():
    """The refusal of a wildcard in a publish subject says which token it is."""
    with pytest.raises(ValueError, match=r"token 2 is the wildcard '\*'; a publish subject is"):
        subjects.check_subject("a.*")
    with pytest.raises(ValueError, match="token 2 is '>', which may only be the last token"):
        subjects.check_filter("a.>.b")


@examples(500)
@given(st.text("ab.*> \x7fé", max_size=5))
def test_subjects_pass_exactly_when_well_formed(text):
    """A text is accepted just when each token is clean and literal."""
    clean = all(p and p not in ("*", ">") and not set(p) & set(" \x7f") for p in text.split("."))

    assert (subjects.subject_fault(text) is None) is clean


@pytest.mark.parametrize(
    ("template", "index", "filter", "wildcard"),
    [
        pytest.param("flights.{partition}.>", 1, "flights.3.>", "flights.*.>", id="middle"),
        pytest.param("{partition}", 0, "3", "*", id="alone"),
        pytest.param("a.*.{partition}", 2, "a.*.3", "a.*.*", id="last"),
    ],
)
def test_partition_template(template, index, filter, wildcard):
    """A template gives the filter of one partition, the filter of all, and the token's index."""
    assert subjects.partition_token(template) == index
    assert subjects.partition_filter(template, 3) == filter
    assert subjects.partition_wildcard(template) == wildcard


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        pytest.param("a.b", "expected exactly one token", id="none"),
        pytest.param("a.{partition}.{partition}", "expected exactly one token", id="two"),
        pytest.param("a.x{partition}", "expected exactly one token", id="part-of-a-token"),
        pytest.param("{partition}.x{partition}", "expected exactly one token", id="one-and-a-half"),
        pytest.param("", "expected exactly one token", id="empty"),
        pytest.param("a..{partition}", "token 2 is empty", id="empty-token"),
        pytest.param(">.{partition}", "token 1 is '>'", id="rest-first"),
    ],
)
def test_bad_partition_template(template, reason):
    """A template without exactly one whole `{partition}` token is refused."""
    for use in (
        subjects.partition_token,
        subjects.partition_wildcard,
        lambda text: subjects.partition_filter(text, 0),
    ):
        with pytest.raises(ValueError, match=reason):
            use(template)


def test_partition_below_zero_is_refused():
    """A partition number is 0 or more."""
    with pytest.raises(ValueError, match="expected 0 or more, got -1"):
        subjects.partition_filter("a.{partition}", -1)
