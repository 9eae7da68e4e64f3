"""A warm index in Parquet: what is in it, and what is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from skipfilter import SkipFilter, warm
from tests.warm_index import columns_that_are_wrong, row, table, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_row_is_an_entry_for_each_role_and_the_hottest_come_first(tmp_path: Path) -> None:
    bits = {role: BitMap(ids).serialize() for role, ids in [("subscribed", [0, 2]), ("authorised", [2])]}
    file = write(
        tmp_path / "w.parquet", table([row("/a", 3), row("/b", 10, epoch="f", cursor=5, **bits), row("/c", 9)])
    )
    subscribed, authorised = list(warm.entries(file, "subscribed")), list(warm.entries(file, "authorised"))
    assert [(e.key, e.epoch, e.cursor) for e in subscribed] == [("/b", "f", 5), ("/c", "e", 0), ("/a", "e", 0)]
    assert [BitMap64.deserialize(e.passed) for e in subscribed[:2]] == [BitMap64([0, 2]), BitMap64()]
    assert BitMap64.deserialize(authorised[0].passed) == BitMap64([2])
    assert warm.hot_topics(file) == ["/b", "/c", "/a"]


@given(st.sets(st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1), st.integers(2**32 - 9, 2**32 - 1))))
def test_a_bitmap_of_32_bits_is_the_same_ids_in_64(ids: set[int]) -> None:
    bits = BitMap(ids)
    bits.run_optimize()
    passed = BitMap64.deserialize(warm._ONE_GROUP + bits.serialize())
    assert passed == BitMap64(ids)
    assert list(passed) == sorted(ids)


def test_who_was_found_elsewhere_is_not_asked(tmp_path: Path) -> None:
    asked: list[int] = []

    def test(value: int, key: str) -> bool:
        asked.append(value)
        return value % int(key) == 0

    passed = {key: [n for n in range(100) if n % int(key) == 0] for key in ("2", "3")}
    rows = [row(key, cursor=100, subscribed=BitMap(ids).serialize()) for key, ids in passed.items()]
    numbers = SkipFilter(test)
    for number in range(100):
        numbers.add(number)
    numbers.remove(6)
    assert numbers.load(warm.entries(write(tmp_path / "w.parquet", table(rows)), "subscribed"), "e") == (2, 0, 0)
    numbers.add(102)
    assert numbers.match_any("2", "3") == [n for n in [*range(100), 102] if n != 6 and (n % 2 == 0 or n % 3 == 0)]
    assert asked == [102, 102]


def test_a_topic_is_hot_once_and_no_more_are_told_than_are_asked_for(tmp_path: Path) -> None:
    rows = [row("/a", 3), row("/b", 2), row("/a", 9, hub="other"), row("/c", 1)]
    file = write(tmp_path / "w.parquet", table(rows))
    assert warm.hot_topics(file) == ["/a", "/b", "/c"]
    assert warm.hot_topics(file, 2) == ["/a", "/b"]


def test_a_directory_of_files_is_read_as_spark_writes_it(tmp_path: Path) -> None:
    write(tmp_path / "part-00000-c000.zstd.parquet", table([row("/a", 1)]))
    write(tmp_path / "part-00001-c000.zstd.parquet", table([row("/b", 2)]))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-00000-c000.zstd.parquet.crc").write_bytes(b"crc")
    assert warm.hot_topics(str(tmp_path)) == ["/b", "/a"]


def test_there_may_be_no_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "w.parquet", table([]))
    assert warm.hot_topics(file) == []
    assert list(warm.entries(file, "authorised")) == []


# -- what is none


def refused(path: Path, reason: str) -> None:
    for read in (warm.hot_topics, lambda path: list(warm.entries(path, "subscribed"))):
        with pytest.raises(ValueError, match=r"cannot be read as a warm index: ") as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert reason in str(caught.value)


GOOD = table([row("/a", 2), row("/b", 1)])


@pytest.mark.parametrize(("reason", "wrong"), columns_that_are_wrong(GOOD).items())
def test_other_columns_are_told_by_name(reason: str, wrong: object, tmp_path: Path) -> None:
    refused(write(tmp_path / "w.parquet", wrong), reason)


def test_a_file_that_is_not_there_or_is_no_parquet(tmp_path: Path) -> None:
    refused(tmp_path / "none.parquet", "there is no such file")
    (tmp_path / "w.parquet").write_text("topic,hits\n/a,1\n" * 100)
    refused(tmp_path / "w.parquet", "")
    whole = write(tmp_path / "w.parquet", GOOD).read_bytes()
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        (tmp_path / "w.parquet").write_bytes(whole[:length])
        refused(tmp_path / "w.parquet", "")


def test_no_bit_of_an_entry_changes_unseen(tmp_path: Path) -> None:
    bits = BitMap(range(0, 3000, 3)).serialize()
    file = tmp_path / "w.parquet"
    whole = write(file, table([row("/a", cursor=3000, subscribed=bits)])).read_bytes()
    good = list(warm.entries(file, "subscribed"))
    seen = 0
    for place in range(4, len(whole) - 8, 53):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = list(warm.entries(file, "subscribed"))
        except ValueError:
            seen += 1
        else:
            assert found == good
    assert seen


def test_ids_that_are_in_no_bitmap_of_32_bits_do_not_count_as_decided(tmp_path: Path) -> None:
    for cursor, whole in [(2**32, True), (2**32 + 1, False)]:
        file = write(tmp_path / "w.parquet", table([row("/a"), row("/b", cursor=cursor)]))
        if whole:
            assert [entry.cursor for entry in warm.entries(file, "subscribed")] == [0, cursor]
        else:
            with pytest.raises(ValueError, match=r"column cursor: 4294967297 is beyond 32 bits"):
                list(warm.entries(file, "subscribed"))


def test_a_damaged_bitmap_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    file = write(tmp_path / "w.parquet", table([row("/a", cursor=1, subscribed=b"no bitmap")]))
    everybody: SkipFilter[str, str] = SkipFilter(lambda value, key: True)
    everybody.add("ann")
    assert everybody.load(warm.entries(file, "subscribed"), "e") == (0, 0, 1)
    assert everybody.match_any("/a") == ["ann"]


def test_without_pyarrow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"a warm index needs pyarrow: pip install skipfilter\[parquet\]"):
        warm.hot_topics("w.parquet")


def test_the_format_is_the_one_that_the_pipeline_writes() -> None:
    pytest.importorskip("pyspark")
    from skipfilter.spark import schemas

    assert warm._TYPES.keys() <= set(schemas.WARM_INDEX.names)
    assert table([row("/a")]).schema.names == schemas.WARM_INDEX.names
