"""summary.json: what is written is read; damaged files give one clear error."""

from pathlib import Path

import pytest
from made_summaries import Setup, made

from mpigraph.errors import StorageError
from mpigraph.reports.summary import Rank, Summary, decode, encode, read, write

SUMMARY = made(0, Setup(trainers=3, nodes=2, servers=True, steps=4))


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "new", SUMMARY)
    assert read(tmp_path / "new") == SUMMARY
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["summary.json"]
    assert decode(Rank, encode(SUMMARY.ranks[1]), "a message") == SUMMARY.ranks[1]
    assert decode(Summary, encode(Summary()), "x") == Summary()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b'{"format": "mpigraph report", "version": 2}',
        b'{"format": "mpigraph report", "version": 1, "nodes": 7}',
        b'{"format": "mpigraph report", "version": 1, "ranks": [{"to_hosts": [[1, 2]]}]}',
    ],
)
def test_what_is_no_summary_is_one_error(data: bytes) -> None:
    with pytest.raises(StorageError, match="some/file is no report of this version"):
        decode(Summary, data, "some/file")


def test_a_folder_without_a_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"summary.json cannot be read .*; give the folder"):
        read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write(tmp_path / "file", SUMMARY)
