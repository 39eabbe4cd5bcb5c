"""summary.json: what is written is read; damaged and hostile files give one clear error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_summaries import Setup, made

from mpigraph.errors import StorageError
from mpigraph.reports.summary import Rank, Summary, decode, encode, read, write

SUMMARY = made(0, Setup(trainers=3, nodes=2, servers=True, steps=4))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, item in inside for place in places(item, (*path, key))]


def replaced(content: Any, path: tuple[Any, ...], by: Any) -> Any:
    content = json.loads(json.dumps(content))
    outer = content
    for key in path[:-1]:
        outer = outer[key]
    outer[path[-1]] = by
    return content


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "new", SUMMARY)
    assert read(tmp_path / "new") == SUMMARY
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["summary.json"]
    assert decode(Rank, encode(SUMMARY.ranks[1]), "a message") == SUMMARY.ranks[1]
    assert decode(Summary, encode(Summary()), "x") == Summary()


def test_names_that_no_file_can_hold_are_kept_as_far_as_possible() -> None:
    assert decode(Rank, encode(Rank(last_spans="a\udc80b")), "x").last_spans == "a?b"


HOSTILE = [None, True, -1, 0.5, 1 << 70, -(1 << 70), "", "\ud800", [], {}, [[[1]]], {"a": {}}, "x" * 500]


def test_no_value_at_any_place_crashes_the_reader() -> None:
    """One error that names the file and a field, or a summary that the value fits."""
    content = json.loads(encode(made(0, Setup(trainers=2, nodes=2, servers=True, steps=2))))
    paths = places(content)
    rng = np.random.default_rng(0)
    wrong = 0
    for i in rng.permutation(len(paths))[:400].tolist():
        value = HOSTILE[i % len(HOSTILE)]
        try:
            decode(Summary, json.dumps(replaced(content, paths[i], value)).encode(), "a/summary.json")
        except StorageError as error:
            named = str(next(key for key in reversed(paths[i]) if isinstance(key, str)))
            wrong += 1
            assert "a/summary.json" in str(error) and len(str(error)) < 400
            assert named in str(error) or "steps" in str(error) or len(paths[i]) == 1, (paths[i], value, error)
    assert wrong > 170


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 10_000, "not JSON|format"),
        (b"null", "format"),
        (b'{"format": "mpigraph report", "version": 2}', r"version: 1 \(got .*2"),
        (b'{"format": "mpigraph report", "version": 1, "nodes": {}}', r"nodes must be a list \(got dict\)"),
        (b'{"format": "mpigraph report", "version": 1, "clock_error": NaN}', "clock_error must be a number"),
        (b'{"format": "mpigraph report", "version": 1, "clock_error": 1e999}', "clock_error must be a number"),
        (b'{"format": "mpigraph report", "version": 1, "ranks": [{"node": 3}]}', r"ranks\[0\].node must be below 0"),
    ],
)
def test_errors_name_the_field(data: bytes, says: str) -> None:
    with pytest.raises(StorageError, match=f"some/file.*({says})"):
        decode(Summary, data, "some/file")


def test_ranks_that_contradict_one_another_are_refused() -> None:
    content = json.loads(encode(SUMMARY))
    for path, value, says in [
        (("ranks", 1, "rank"), 0, "same rank twice"),
        (("ranks", 1, "role"), "boss", r"ranks\[1\].role must be"),
        (("ranks", 1, "steps", "wait"), [1.0], r"ranks\[1\].steps.wait must be as long"),
        (("ranks", 0, "to_hosts", 0), [1, 2], r"to_hosts\[0\] must be a list of host_rank, "),
    ]:
        with pytest.raises(StorageError, match=says):
            decode(Summary, json.dumps(replaced(content, path, value)).encode(), "x")


def test_a_folder_without_a_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"summary.json is not a file; give the folder"):
        read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write(tmp_path / "file", SUMMARY)


def test_summaries_of_several_witnesses_are_joined(tmp_path: Path) -> None:
    """Each has the ranks of its node; the first one saw the cause."""
    for name, ranks, seconds, ended in [("summary", [0], 9.0, "ended"), ("summary-1", [3, 1], 8.0, "rank 1 died")]:
        part = decode(Summary, encode(SUMMARY), "x")
        part.complete = False
        part.ranks = [part.ranks[rank] for rank in ranks]
        part.job.seconds = seconds
        part.ended = ended
        (tmp_path / f"{name}.json").write_bytes(encode(part))
    joined = read(tmp_path)
    assert joined.ranks == [SUMMARY.ranks[rank] for rank in (0, 1, 3)]
    assert (joined.ended, joined.complete, joined.nodes) == ("rank 1 died\nended", False, SUMMARY.nodes)
    (tmp_path / "summary.json").unlink()
    assert [rank.rank for rank in read(tmp_path).ranks] == [1, 3]
