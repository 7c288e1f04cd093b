"""A streaming query's checkpoint, read off its files."""

import json
from pathlib import Path

import pytest

from pyspark_jetstream.errors import OffsetError, OptionError
from pyspark_jetstream.operations.batches import Batches, offsets_of, read_batches, with_offset
from pyspark_jetstream.operations.files import LocalFiles, checkpoint_files

from ...kits.checkpoints import offset, write_checkpoint


def read(path: Path) -> Batches:
    """The last batches of a checkpoint in a directory of this machine."""
    return read_batches(LocalFiles(path))


FIRST, SECOND = offset({"S": "t"}, [5, 6]), offset({"S": "t"}, [7, 8])


@pytest.mark.parametrize("version", [1, 2])
def test_last_batches(tmp_path, version):
    """What was planned and committed comes with the offsets of all sources, in both versions."""
    batches = [[FIRST, None, 3], [SECOND, {"topic": {"0": 1}}, 4]]
    found = read(write_checkpoint(tmp_path, batches, version=version))

    assert found.query == "7182ce1d-c6c1-492d-81c4-c3bb61409ac5"
    assert (found.planned, found.committed) == (1, 0)
    assert found.planned_offsets == {"0": SECOND, "1": {"topic": {"0": 1}}, "2": 4}
    assert found.committed_offsets == {"0": FIRST, "2": 3}


def test_a_batch_that_was_committed(tmp_path):
    """Where the last batch is done, both are the same; batches go by number, not by name."""
    batches = [[FIRST]] * 11 + [[SECOND]]
    found = read(write_checkpoint(tmp_path, batches, committed=11))

    assert (found.planned, found.committed) == (11, 11)
    assert found.planned_offsets == found.committed_offsets == {"0": SECOND}


def test_before_the_first_batch(tmp_path):
    """A checkpoint of a query that has not planned a batch is one, without batches."""
    (tmp_path / "metadata").write_text('{"id": "x"}')
    found = read(tmp_path)

    assert (found.planned, found.committed, found.planned_offsets) == (None, None, {})


def test_sources_are_in_order():
    """Sources go by number, whatever order the file has; named ones keep their names."""
    lines = [f"{each}:{each}" for each in (10, 2, 0)] + ["flights:-", "orders:not json"]
    found = offsets_of("\n".join(["v2", "{}", *lines, ""]))

    assert list(found.items()) == [("0", 0), ("2", 2), ("10", 10), ("orders", "not json")]


@pytest.mark.parametrize("version", [1, 2])
def test_one_offset_is_another(tmp_path, version):
    """Of a file with several sources one offset is put in place of another; the rest stays."""
    path = write_checkpoint(tmp_path, [[3, FIRST, None]], version=version)
    text = (path / "offsets" / "0").read_text()
    found = with_offset(text, "1", json.dumps(SECOND))

    assert offsets_of(found) == {"0": 3, "1": SECOND}
    assert with_offset(found, "1", json.dumps(FIRST)) == text


def test_a_file_that_is_written(tmp_path):
    """It is replaced as a whole, without the checksum of what was there, and nothing is left."""
    files = LocalFiles(write_checkpoint(tmp_path, [[FIRST]]))
    names = set(files.names("offsets"))
    files.write("offsets/0", b"new")

    assert files.read("offsets/0") == b"new"
    assert names - set(files.names("offsets")) == {".0.crc"}


def test_a_file_that_is_removed_meanwhile(tmp_path):
    """A file that Spark removes meanwhile is no failure; one that stays away is."""
    write_checkpoint(tmp_path, [[FIRST], [SECOND]])
    lists = []

    class Stale(LocalFiles):
        def names(self, directory):
            lists.append(directory)
            return super().names(directory) + (["7"] if len(lists) <= 2 else [])

    found = read_batches(Stale(tmp_path))
    (tmp_path / "metadata").unlink()

    assert (found.planned, len(lists)) == (1, 4)
    with pytest.raises(OptionError, match="No such file .*metadata"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "offsets", "says"),
    [
        ('{"id": "x"}', "v3\n{}\n1", "expected Spark's offsets of version v1 or v2, got 'v3'"),
        ('{"id": "x"}', "", "expected Spark's offsets of version v1 or v2, got ''"),
        ("[]", "v1\n{}", "no streaming query's metadata: '[]'"),
        ("{", "v1\n{}", "no streaming query's metadata: '{'"),
    ],
)
def test_files_that_are_not_sparks(tmp_path, metadata, offsets, says):
    """What Spark does not write is said, with the file."""
    write_checkpoint(tmp_path, [[FIRST]])
    (tmp_path / "metadata").write_text(metadata)
    (tmp_path / "offsets" / "0").write_text(offsets)

    with pytest.raises(OffsetError) as caught:
        read(tmp_path)
    assert says in str(caught.value)
    assert (str(tmp_path / "offsets" / "0") in str(caught.value)) == ("Spark's" in says)


def test_a_file_that_may_not_be_read(tmp_path):
    """A file that is no text is said in one line."""
    write_checkpoint(tmp_path, [[FIRST]])
    (tmp_path / "offsets" / "0").write_bytes(b"v1\n\xff")

    with pytest.raises(OffsetError, match="'utf-8' codec"):
        read(tmp_path)


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "file:{}", "file://localhost{}"])
def test_a_location(tmp_path, form):
    """A checkpointLocation may be a path or a file URI."""
    path = write_checkpoint(tmp_path / "a b%", [[FIRST]])
    text = str(path).replace(" ", "%20").replace("b%", "b%25") if "file" in form else str(path)

    assert checkpoint_files(form.format(text)).location == str(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/nowhere/c", "'/nowhere/c': there is no such directory"),
        (".", "'.': it has no file metadata"),
    ],
)
def test_what_is_no_location(tmp_path, monkeypatch, text, says):
    """Directories that are none of a query are refused in one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()

    with pytest.raises(OptionError) as caught:
        checkpoint_files(text)
    assert str(caught.value) == f"option 'checkpoint': no streaming query's: {says}"
