"""Arrow's small words against the same in plain Python, on slices, too."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream import arrays


def sliced(values, type, before):
    """A column of these values that is a slice of a longer one."""
    filler: object = [("k", "v")] if pa.types.is_map(type) else 7 if type == pa.int32() else b"xyz"
    return pa.array([filler] * before + values + [filler], type).slice(before, len(values))


@given(st.lists(st.binary(max_size=3), min_size=1), st.integers(0, 3))
def test_bytes_and_their_positions(texts, before):
    """A column's offsets cut its buffer into the same bytes again."""
    column = sliced(texts, pa.binary(), before)
    ends, text = arrays.offsets(column), column.buffers()[2]

    assert ends.type == pa.int32() and len(ends) == len(texts) + 1
    assert arrays.between(arrays.take(ends, arrays.numbers(len(ends))), text).to_pylist() == texts
    whole = arrays.between(arrays.take(ends, arrays.every(len(texts), 2)), text)
    assert whole.to_pylist() == [b"".join(texts)]
    sizes = sliced([len(each) for each in texts], pa.int32(), before)
    assert [end - ends[0].as_py() for end in ends.to_pylist()] == arrays.bounds(sizes).to_pylist()
    assert list(arrays.view(sizes)) == [len(each) for each in texts]
    assert list(arrays.view(sizes.cast(pa.int64()))) == [len(each) for each in texts]


@pytest.mark.parametrize("columns", [1, 2, 3, 4])
@pytest.mark.parametrize("before", [0, 3])
def test_woven_columns(columns, before):
    """Rows of several columns stand behind each other, as INT32."""
    rows = [[10 * row + column for row in range(17)] for column in range(columns)]
    found = arrays.woven([sliced(each, pa.int32(), before) for each in rows])

    assert found.type == pa.int32()
    assert found.to_pylist() == [value for row in zip(*rows, strict=True) for value in row]


def test_counted_numbers():
    """Numbers have the width that is said, whatever count was asked for before."""
    for count in (5, 0, 1, 8, 7, 9, 1000):
        assert arrays.places(count).to_pylist() == arrays.numbers(count).to_pylist()
        assert arrays.numbers(count).to_pylist() == list(range(count))
        assert arrays.every(0, count, 3).to_pylist() == [3] * count
        assert arrays.every(3, count, 2).to_pylist() == [2 + 3 * each for each in range(count)]
    assert (arrays.places(2).type, arrays.numbers(2).type) == (pa.int64(), pa.int32())
    assert (arrays.every(0, 2).type, arrays.every(2, 2).type) == (pa.int32(), pa.int32())
    numbers = pa.array([0, 2**63 - 1, -1])
    assert arrays.integers(arrays.digits(numbers)).equals(numbers)


@pytest.mark.parametrize("before", [0, 3])
def test_entries_of_maps(before):
    """Of a slice of maps only its own entries, null and empty rows among them."""
    maps: list = [[("a", "1"), ("b", "2")], None, [], [("c", "3")]]
    starts, keys, values = arrays.entries(sliced(maps, pa.map_(pa.string(), pa.string()), before))

    assert (starts.type, starts.to_pylist()) == (pa.int32(), [0, 2, 2, 2, 3])
    assert (keys.to_pylist(), values.to_pylist()) == (["a", "b", "c"], ["1", "2", "3"])
