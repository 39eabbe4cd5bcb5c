"""Folders of checkpoints on this machine's disk: which there are, who writes there, and what may be removed."""

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mpigraph.checkpoint.manifest import FILE, MANIFEST, Manifest
from mpigraph.errors import InvalidArgumentError, ShardFormatError, StorageError
from mpigraph.log import get_logger
from mpigraph.storage.files import temporary_name

__all__ = ["Writer", "check_vacant", "checkpoints", "newest_number", "remove_old", "remove_other_saves", "token_name"]

_WRITER = ".mpigraph-writer"
_PATIENCE = 60.0  # seconds for what takes another process milliseconds
_UNFINISHED = temporary_name(Path(MANIFEST)).name
_TOKEN = re.compile(r"\.([0-9a-f]{12})-([0-9]+)\.node")


def token_name(word: str, node: int) -> str:
    """The file by which a node shows the others which folder it sees."""
    return f".{word}-{node}.node"


def checkpoints(folder: Path, warn: bool) -> dict[str, Manifest]:
    """The checkpoints in a folder, by name, as far as their manifests can be read; ``warn`` of the others."""
    found = {}
    for name in _names(folder):
        try:
            found[name] = Manifest.read(folder / name)
        except ShardFormatError as error:
            if warn and not _lacks_manifest(folder / name):
                get_logger().warning("checkpoint %s is passed over: %s", folder / name, error)
    return found


def newest_number(folder: Path) -> int:
    """The number of the newest checkpoint in a folder, 0 if there is none."""
    newest = 0
    for name in _names(folder):
        with suppress(ShardFormatError):
            newest = max(newest, Manifest.read(folder / name).number)
    return newest


def _names(folder: Path) -> list[str]:
    """The folders in a folder, no links."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:  # not to begin anew where checkpoints are
        raise StorageError(f"{folder}: cannot look for checkpoints: {error.strerror}") from error


def _lacks_manifest(directory: Path) -> bool:
    """Whether there is surely no manifest in a folder."""
    try:
        os.stat(directory / MANIFEST)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _is_ours(name: str, but: str = "") -> bool:
    """Whether a file belongs to a save, unless to that of word ``but``."""
    inner = name.removeprefix(".").removesuffix(".tmp")
    found = FILE.fullmatch(inner) or _TOKEN.fullmatch(name)
    return name == _UNFINISHED or (found is not None and found[1] != but)


def check_vacant(directory: Path) -> None:
    """Check that a folder holds a checkpoint, what is left of a save that was killed, or nothing.

    Raises:
        InvalidArgumentError: it holds something else; hidden files do not count.
    """
    try:
        names = os.listdir(directory)
    except OSError:  # it is not there yet, or writing there says what is wrong
        return
    ours = set(filter(_is_ours, names))
    others = sorted(name for name in names if name not in ours and not name.startswith("."))
    if others and not (ours and MANIFEST in names):
        raise InvalidArgumentError(
            f"checkpoint_id: {directory} holds {others[0]!r} and no checkpoint: give a folder of its own, or say "
            "overwrite=True"
        )


def remove_other_saves(directory: Path, word: str) -> None:
    """Remove what other saves have left in the folder of a checkpoint."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if _is_ours(name, word):
                with suppress(OSError):
                    (directory / name).unlink()


def remove_old(directory: Path, keep: int) -> None:
    """Beside a checkpoint, keep so many, the newest, itself among them, and remove the others and unfinished saves.

    Folders that hold anything else keep it.
    """
    folder = directory.parent
    complete, broken = [], []
    for name in _names(folder):
        if name != directory.name:
            try:
                complete.append((Manifest.read(folder / name).number, name))
            except ShardFormatError:
                if _lacks_manifest(folder / name):
                    broken.append(name)
    complete.sort(reverse=True)
    for name in [name for _, name in complete[keep - 1 :]] + broken:
        with suppress(OSError):
            names = os.listdir(folder / name)
            if MANIFEST in names:  # first: what is left is no checkpoint
                (folder / name / MANIFEST).unlink()
            elif not any(map(_is_ours, names)):
                continue
            remove_other_saves(folder / name, "")
            (folder / name).rmdir()


def _lock(file: Any, folder: Path) -> None:
    """Lock a file, where the file system has locks. Raises StorageError if another process does not give it back."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise StorageError(f"{folder}: another process is ending a save here for {_PATIENCE:.0f} s") from None
            time.sleep(0.01)
        except OSError:
            return
        else:
            return


class Writer:
    """A job's right to write checkpoints into a folder: the job that came last has it.

    A job that was cut off from the others, or forgotten, must not overwrite what the job writes that goes on in its
    place; nor may a lock keep that one waiting, which the file system holds for a node that is gone.

    Attributes:
        token: what tells this job from others; all trainers are given the first one's.
    """

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self._folders: set[Path] = set()

    @contextmanager
    def holding(self, folder: Path) -> Iterator[None]:
        """Inside, no other job begins or ends a save in the folder, where the file system has locks.

        Raises:
            StorageError: another job has begun to write there since this one did, or the folder cannot be written.
        """
        path = folder / _WRITER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StorageError(f"{path}: cannot write: {error.strerror}") from error
        with os.fdopen(number, "r+") as file:
            _lock(file, folder)
            self._claim(file, folder)
            yield

    def _claim(self, file: Any, folder: Path) -> None:
        known = folder.resolve()
        try:
            said = json.load(file)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            said = {}
        if said.get("job") == self.token:
            self._folders.add(known)
            return
        if known in self._folders and said:
            raise StorageError(
                f"{folder}: another job writes checkpoints here since {said.get('since')}, from process "
                f"{said.get('process')} on {said.get('node')}: give each job a folder"
            )
        self._folders.add(known)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        text = json.dumps({"job": self.token, "node": os.uname().nodename, "process": os.getpid(), "since": since})
        try:
            file.seek(0)
            file.truncate()
            file.write(text + "\n")
            file.flush()
        except OSError as error:
            raise StorageError(f"{folder / _WRITER}: cannot write: {error.strerror}") from error
