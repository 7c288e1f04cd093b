"""Layouts: which stream and filter each partition is, and who is contradicted."""

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.fetch.layout import Layout, SubjectPartition, resolve_layout
from pyspark_jetstream.options import parse_stream


def resolve(config=None, **options):
    parsed = parse_stream({"stream": "S"} | options)
    return resolve_layout(parsed, {parsed.stream: config or {}})


def transform(dest, src="in.>"):
    return {"subject_transform": {"src": src, "dest": dest}}


def sources(*dests):
    return {
        "sources": [
            {"name": "T"},
            {"name": "U", "subject_transforms": [{"src": "in.>", "dest": d} for d in dests]},
        ]
    }


def mirrored(dest):
    return {"mirror": {"name": "T", "subject_transforms": [{"src": "in.>", "dest": dest}]}}


@pytest.mark.parametrize("kind", [transform, sources, mirrored])
def test_whoever_numbers_gives_n(kind):
    """A stream's own transform, a source's and a mirror's tell the number of partitions alike."""
    layout = resolve(kind("f.{{partition(2,1)}}.>"))

    assert [p.filter for p in layout] == ["f.0.>", "f.1.>"]
    with pytest.raises(OptionError, match="makes 2 partitions, not 3"):
        resolve(kind("f.{{partition(2,1)}}.>"), partitions="3")


def test_transforms_that_disagree_are_refused():
    """A stream whose transforms make different partitions has no layout to follow."""
    with pytest.raises(OptionError, match="disagree"):
        resolve(sources("f.{{partition(2,1)}}.>", "f.{{partition(8,1)}}.>"))


def test_without_options_there_is_one_partition():
    """A plain stream is one unfiltered partition, and every message belongs to it."""
    layout = resolve()

    assert tuple(layout) == (SubjectPartition(0, "S", None),)
    assert layout.classifier() is None
    assert layout.union_filter is None
    assert layout.streams == ("S",)


def test_a_subject_filters_the_one_partition():
    """`subject` is the filter of the one partition, whatever transforms the stream has."""
    layout = resolve(transform("f.{{partition(4,1)}}.>"), subject="f.2.*")
    classify = layout.classifier()

    assert tuple(layout) == (SubjectPartition(0, "S", "f.2.*"),)
    assert [classify(s) for s in ("f.2.a", "f.3.a", "f.2.a.b")] == [0, None, None]


def test_several_filters_are_partitions():
    """Each filter of `subject` is a partition, by its place."""
    layout = resolve(transform("f.{{partition(4,1)}}.>"), subject="f.2.*, a, g.>")
    classify = layout.classifier()

    assert tuple(layout) == (
        SubjectPartition(0, "S", "f.2.*"),
        SubjectPartition(1, "S", "a"),
        SubjectPartition(2, "S", "g.>"),
    )
    assert [classify(s) for s in ("f.2.a", "a", "g.a.b", "f.3.a", "b")] == [0, 1, 2, None, None]
    assert layout.shares_stream and not resolve(subject="a").shares_stream
    assert layout.filters(None) == ("f.2.*", "a", "g.>")
    assert layout.filters(1) == ("a",)


def test_the_streams_layout():
    """With `{partition}` in the stream's name each partition is a whole stream."""
    layout = resolve(stream="S-{partition}-x", partitions="3")

    assert tuple(layout) == tuple(SubjectPartition(p, f"S-{p}-x") for p in range(3))
    assert layout.streams == ("S-0-x", "S-1-x", "S-2-x")
    assert layout.classifier() is None
    assert layout.union_filter is None


def test_the_filtered_layout():
    """With `partitionSubject` each partition is a filter on one stream."""
    layout = resolve(partitions="12", partitionSubject="f.{partition}.*.>")

    assert len(layout) == 12
    assert layout.partitions[11] == SubjectPartition(11, "S", "f.11.*.>")
    assert layout.union_filter == "f.*.*.>"
    assert layout.streams == ("S",)


@pytest.mark.parametrize(
    ("subject", "partition"),
    [
        ("f.0.a", 0),
        ("f.11.a.b", 11),
        ("f.12.a", None),
        ("f.00.a", None),
        ("f.+1.a", None),
        ("f.x.a", None),
        ("f.1", None),
        ("g.1.a", None),
        ("f..a", None),
        ("", None),
        ("f.\u0663.a", None),
    ],
)
def test_classifier(subject, partition):
    """A subject belongs to the partition whose filter matches it, and to none otherwise."""
    classify = resolve(partitions="12", partitionSubject="f.{partition}.>").classifier()

    assert classify(subject) == partition


@pytest.mark.parametrize(
    ("config", "template", "count"),
    [
        (transform("f.{{partition(4,1)}}.>"), "f.{partition}.>", 4),
        (transform("f.{{Partition( 8 , 1, 2 )}}.$1.{{wildcard(2)}}"), "f.{partition}.*.*", 8),
        (transform("{{partition(1)}}.a"), "{partition}.a", 1),
        (sources("f.$1.{{partition(5,1)}}"), "f.*.{partition}", 5),
        (sources("plain.>", "f.{{partition(5,1)}}.>"), "f.{partition}.>", 5),
    ],
    ids=["own", "spelling", "one", "source", "second-transform"],
)
def test_layouts_follow_the_streams_transform(config, template, count):
    """A `partition(N, …)` transform of the stream gives N and the partition's token."""
    layout = resolve(config)

    assert layout.partition_subject == template
    assert len(layout) == count


def test_a_template_of_ones_own_may_be_narrower():
    """`partitionSubject` may narrow the transform's subjects if the partition token stays."""
    layout = resolve(
        transform("f.{{partition(4,1)}}.>"), partitions="4", partitionSubject="f.{partition}.eu.>"
    )

    assert layout.partitions[3].filter == "f.3.eu.>"


@pytest.mark.parametrize(
    ("options", "blamed", "told"),
    [
        ({"partitions": "5"}, "partitions", "makes 4 partitions"),
        (
            {"partitions": "5", "partitionSubject": "f.{partition}.>"},
            "partitions",
            "makes 4 partitions",
        ),
        (
            {"partitions": "4", "partitionSubject": "f.*.{partition}"},
            "partitionSubject",
            "another token",
        ),
    ],
    ids=["count", "count-and-template", "token"],
)
def test_options_may_not_contradict_the_transform(options, blamed, told):
    """Another number or place than the transform makes is an error that says what fits."""
    with pytest.raises(OptionError) as caught:
        resolve(transform("f.{{partition(4,1)}}.>"), **options)

    assert caught.value.option == blamed
    assert told in str(caught.value)


def test_partitions_need_a_place():
    """Several partitions of a stream without a transform need a place for the number."""
    with pytest.raises(OptionError, match="partitionSubject="):
        resolve(partitions="2")
    assert len(resolve(partitions="1")) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"subject_transform": None, "sources": None},
        {"subject_transform": {}, "sources": [{"name": "T", "subject_transforms": None}]},
        {"subject_transform": {"src": "a", "dest": ""}},
        transform("f.$1.{{split(1,-)}}"),
        transform("f.{{partition(0,1)}}.>"),
        transform("f.{{split(1,-)}}.{{partition(3,1)}}"),
    ],
    ids=["null", "empty", "blank", "no-partition", "zero", "unknown-place"],
)
def test_configurations_without_a_layout(config):
    """A stream whose configuration tells no layout is one partition."""
    assert len(resolve(config)) == 1


def test_each_stream_is_partition_0_of_itself():
    """Among all partitions each has its place; its rows have the number within its stream."""
    layout = Layout.of_streams(["B", "A"])

    assert tuple(layout) == (SubjectPartition(0, "B"), SubjectPartition(1, "A"))
    assert layout.streams == ("B", "A")
    assert not layout.shares_stream
    assert layout.within(1) == (Layout((SubjectPartition(0, "A"),)), 0)
