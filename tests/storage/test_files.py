"""Files are whole or absent, even if a process is killed; only regular files are opened."""

import errno
import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import cannot_mount, clean_environment, run_job, warm_python, with_file_system

from mpigraph.storage.files import NewFile, open_regular, read_text, temporary_name


def test_a_new_file_replaces_the_old_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    for content in (b"one", b"the other"):
        with NewFile(path, durable=True) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() == b"one"
        assert path.read_bytes() == content
    with pytest.raises(ZeroDivisionError), NewFile(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"the other" and os.listdir(path.parent) == ["file"]


def test_what_a_killed_writer_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    killed = (
        "import os, sys; from mpigraph.storage.files import NewFile; NewFile(sys.argv[1]).write(b'x' * 99); os._exit(9)"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", killed, path], check=False).returncode == 9
        assert os.listdir(tmp_path) == [temporary_name(path).name]
    with NewFile(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: None])
def test_only_files_are_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "x")
    for call in (open_regular, read_text):
        with pytest.raises(OSError):
            call(tmp_path / "x")


FULL_DISK = """
import errno, sys
import numpy as np
from mpigraph.errors import StorageError
from mpigraph.storage import shard
if sys.argv[2] == "unknown":  # as where a quota, or another process, takes what was free
    shard.check_space = lambda *_: None
for _ in range(3):
    try:
        with shard.ShardWriter(sys.argv[1] + "/x.h5", "g", 0, "id") as writer:
            for k in range(8):
                writer.add(f"rows{k}", np.zeros(1 << 17))
    except StorageError as error:
        print(error)
"""


@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
@pytest.mark.parametrize("space", ["known", "unknown"])
def test_a_full_disk_is_one_error(tmp_path: Path, space: str) -> None:
    """HDF5 cannot close a file that it cannot write: it prints dozens of lines, and dies by a signal at exit."""
    (tmp_path / "disk").mkdir()
    command = [*with_file_system(tmp_path / "disk", "3500k"), *warm_python(), "-c", FULL_DISK, tmp_path / "disk", space]
    done = run_job(command, clean_environment())
    assert done.status == 0 and done.stderr == "", done.output
    lines = done.stdout.splitlines()
    words = "lacks space: dataset 'rows3' of" if space == "known" else "x.h5: cannot write: No space left on device"
    assert len(lines) == 3 and all(words in line for line in lines), done.stdout


def test_writers_that_queue_come_one_after_the_other(tmp_path: Path) -> None:
    write = (
        "import sys; from mpigraph.storage.files import NewFile\n"
        "for _ in range(50):\n"
        "    with NewFile(sys.argv[1], queue=True) as file: file.write(sys.argv[2].encode() * 1000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", write, tmp_path / "file", word]) for word in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(set((tmp_path / "file").read_bytes())) == 1 and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("shift", [0, 512, 16])
def test_large_parts_are_written_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int, refused: bool
) -> None:
    """From any address, to any place, in parts of any length; also where the file system refuses it."""
    if refused:

        def refuse(file: NewFile, request: int, *flags: int) -> int:
            if flags and flags[0] & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return 0

        monkeypatch.setattr(fcntl, "fcntl", refuse)
    memory = mmap.mmap(-1, 16 << 20)
    memory[:] = os.urandom(len(memory))
    data = memoryview(memory)[shift:]
    expected = b""
    with NewFile(tmp_path / "file", durable=True) as file:
        for length in (5 << 20, 100, 1 << 20, (2 << 20) + 4097, 3996, 6 << 20, 0):
            begin = len(expected)
            file.write(data[begin : begin + length])
            expected += data[begin : begin + length]
        file.seek(1 << 20)  # as HDF5 does
        file.write(data[: 2 << 20])
    expected = expected[: 1 << 20] + data[: 2 << 20] + expected[3 << 20 :]
    assert (tmp_path / "file").read_bytes() == expected
