"""Runs of partition that end in the middle, and the files that stay as they are."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from mpigraph.partition.part_writer import PartWriter


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int, cut: Callable[[], object]) -> None:
    """End a run where it begins to write its part number ``at``."""
    write = PartWriter.write

    def until(writer: PartWriter, part: int) -> object:
        if part == at:
            raise KeyboardInterrupt
        return write(writer, part)

    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "write", until)
        with pytest.raises(KeyboardInterrupt):
            cut()


def state(folder: Path, parts: Iterable[object] = (0, 1)) -> dict[Path, tuple[int, int]]:
    """Return inodes and times, which change if a part's files are written again."""
    files = [path for part in parts for path in (folder / f"part{part}").iterdir()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
