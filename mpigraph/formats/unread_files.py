"""Which files of a folder a reader has read, so that it can name the others."""

import os
from pathlib import Path

__all__ = ["FolderFiles"]

_MARKERS = ("_SUCCESS", "_metadata", "_common_metadata")  # of Spark and of parquet
_PICKLES = (".pt", ".pth", ".pkl", ".pickle")


class FolderFiles:
    """A folder of which some files are read.

    Args:
        folder: the folder; files are named relative to it. Links are followed to compare names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._read: set[Path] = set()

    def read(self, path: Path) -> Path:
        """Note that a file is read, or that one without it is missing; return its path."""
        self._read.add(path.resolve())
        return path

    def left_out(self) -> tuple[str, ...]:
        """Name the files that were not read. A folder with no read file is one name; hidden files are not named."""
        with_read_files = {folder for path in self._read for folder in path.parents}
        found = []
        for name, folders, files in os.walk(self._folder):
            here = Path(name)
            unread = [here / folder for folder in sorted(folders) if (here / folder).resolve() not in with_read_files]
            folders[:] = sorted(folder for folder in folders if here / folder in with_read_files)
            for path in unread:
                count = sum(len(names) for _, _, names in os.walk(path))
                if count and not _is_hidden(path):
                    found.append(f"{path.relative_to(self._folder)}/ ({count} file{'s' if count > 1 else ''})")
            for path in (here / file for file in sorted(files)):
                if path.resolve() not in self._read and not _is_hidden(path):
                    found.append(f"{path.relative_to(self._folder)}{_reason(path)}")
        return tuple(found)


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name in _MARKERS


def _reason(path: Path) -> str:
    return " (a pickle, which can run code)" if path.suffix in _PICKLES else ""
