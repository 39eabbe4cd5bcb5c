"""The folder of compiled kernels, and kernels that are not compiled."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

import pytest
from jobs import cannot_mount, clean_environment, run_job
from numba import config
from numba.core.caching import Cache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import TypingError

from mpigraph import kernels
from mpigraph.compiling import REPORT
from mpigraph.errors import StorageError
from mpigraph.kernels import cache
from mpigraph.kernels.csr import find_in_rows
from mpigraph.kernels.rng import combine

CACHED = (cache.folder, cache._folder_of_locks, cache._warn_not_kept)


def forget() -> None:
    for function in CACHED:
        function.cache_clear()


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The folder is chosen when it is next asked for, as in a new process."""
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def test_without_a_place_the_cache_is_in_a_folder_of_this_user(tmp_path: Path, anew: pytest.MonkeyPatch) -> None:
    anew.setattr(config, "CACHE_DIR", "/proc/self/nowhere")
    anew.setattr(cache.tempfile, "tempdir", str(tmp_path))

    def chosen() -> Path:
        forget()
        folder = cache.folder()
        assert folder.name == f"mpigraph-{cache._hash()}"
        return folder.parent

    first = chosen()
    assert first.parent == tmp_path and first.stat().st_mode & 0o777 == 0o700
    assert chosen() == first  # as the other ranks of the node do
    first.chmod(0o777)  # others may have put code there
    assert chosen().parent == tmp_path and chosen() != first
    shutil.rmtree(first)
    first.symlink_to(tmp_path)
    assert chosen() not in (first, tmp_path)


def test_where_nothing_can_be_written_the_error_says_what_to_set(anew: pytest.MonkeyPatch) -> None:
    def no_candidates() -> list[str]:
        return ["/proc/self"]

    anew.setattr(config, "CACHE_DIR", "/proc/self/nowhere")
    anew.setattr(cache.tempfile, "tempdir", None)
    anew.setattr(cache.tempfile, "_candidate_tempdir_list", no_candidates)
    with pytest.raises(StorageError, match="set TMPDIR or NUMBA_CACHE_DIR to a folder that can be written .No usable"):
        cache.folder()


def test_a_full_place_is_not_taken(tmp_path: Path, anew: pytest.MonkeyPatch) -> None:
    def full(dir: Path) -> Any:
        assert dir.is_relative_to(tmp_path / "full")
        raise OSError(28, "No space left on device")

    anew.setattr(config, "CACHE_DIR", str(tmp_path / "full"))
    anew.setattr(cache.tempfile, "tempdir", str(tmp_path))
    anew.setattr(cache.tempfile, "TemporaryFile", full)
    assert cache.folder().parent.parent == tmp_path


COMPILES = """
import numpy as np
from mpigraph.compiling import REPORT
from mpigraph.kernels.flat import widen
from mpigraph.kernels.rng import combine
key = combine(np.uint64(1), np.uint64(2))
widen(np.zeros(2, np.float32), True)
print("compiled", REPORT.compiled, int(key), repr(REPORT.status()))
"""


@pytest.mark.slow
def test_one_of_several_processes_compiles_a_kernel_and_says_so(tmp_path: Path) -> None:
    """Also where another kernel is in the cache already."""
    env = clean_environment() | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILES]
    first = run_job([sys.executable, "-c", COMPILES.partition("widen(np")[0] + "print(REPORT.compiled)"], env)
    assert first.status == 0 and int(first.stdout) > 0
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: run_job(command, env), range(2)))
    later = run_job(command, env)
    assert [done.status for done in (*both, later)] == [0, 0, 0], both
    counts = [int(done.stdout.split()[1]) for done in both]
    assert sum(counts) == len(list(tmp_path.rglob("*.nbc"))) - int(first.stdout)
    for count, done in zip(counts, both, strict=True):
        assert count == 0 or "compiling kernels (first use)" in done.stderr
    assert later.stdout.startswith("compiled 0 ") and later.stderr == ""
    assert all(done.stdout.endswith(" ''\n") for done in (*both, later))


@pytest.mark.slow
def test_a_process_that_holds_a_lock_for_ever_keeps_no_other_one_waiting(tmp_path: Path) -> None:
    locks = tmp_path / f"mpigraph-kernels-{os.getuid()}"
    locks.mkdir(mode=0o700)
    script = "import numpy as np; from mpigraph.kernels.rng import combine; print(int(combine(1, np.uint64(2))))"
    env = {"TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "MPIGRAPH_TIMEOUT": "0.5"}
    with ExitStack() as stack:
        for kernel in ("mix64", "_combine"):
            flock(
                stack.enter_context(open(locks / f"mpigraph.kernels.rng.{kernel}-{cache._hash()}.lock", "w")), LOCK_EX
            )
        done = run_job([sys.executable, "-c", script], clean_environment() | env)
    assert done.status == 0 and int(done.stdout) == int(combine(1, 2)), done.output


def test_what_cannot_be_compiled_keeps_no_other_process_waiting() -> None:
    with pytest.raises(TypingError):
        find_in_rows(*["text"] * 7)
    with open(cache._folder_of_locks() / f"mpigraph.kernels.csr.find_in_rows-{cache._hash()}.lock", "w") as lock:
        flock(lock, LOCK_EX | LOCK_NB)
    assert REPORT.status() == ""


def test_kernels_run_without_a_compiler() -> None:
    code = "from mpigraph.kernels import warm_up, rng; warm_up(); print(type(rng.combine).__name__)"
    done = run_job([sys.executable, "-c", code], clean_environment() | {"NUMBA_DISABLE_JIT": "1"})
    assert (done.status, done.stdout, done.stderr) == (0, "function\n", "")


@pytest.mark.slow
@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount() or "mounts")
def test_a_job_runs_where_neither_installation_nor_home_can_be_written(tmp_path: Path) -> None:
    package = Path(cache.__file__).parent
    mount = f"mount --make-rprivate / && mount --bind {package} {package} && mount -o remount,ro,bind {package}"
    mount += f" && mount -t tmpfs tmpfs {package}/__pycache__ && mount -o remount,ro {package}/__pycache__"
    code = "from mpigraph.kernels.rng import combine; import numpy as np; combine(np.uint64(1), np.uint64(2))"
    env = clean_environment() | {"HOME": "/proc/self", "XDG_CACHE_HOME": "/proc/self", "TMPDIR": str(tmp_path)}
    env.pop("NUMBA_CACHE_DIR", None)
    done = run_job(["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", code], env)
    assert done.status == 0, done.output
    (folder,) = tmp_path.glob("mpigraph-kernels-*")
    assert list(folder.rglob("*.nbi"))


@pytest.fixture
def folder(tmp_path: Path, anew: pytest.MonkeyPatch) -> Path:
    """A folder for compiled kernels, with two files."""
    anew.setattr(config, "CACHE_DIR", str(tmp_path))
    anew.setattr(config, "DISABLE_JIT", 0)
    folder = cache.folder()
    anew.setattr(config, "CACHE_DIR", "")
    (folder / "kernels").mkdir()
    for name in ("rng.combine-1.py.nbi", "rng.combine-1.py.1.nbc"):
        (folder / "kernels" / name).touch()
    return folder


def test_kernels_are_compiled_at_the_start_unless_all_are_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    index, code = folder / "kernels" / "rng.combine-1.py.nbi", folder / "kernels" / "rng.combine-1.py.1.nbc"

    def warm_up() -> None:
        compiled.append(1)
        for path in (index, code):
            path.touch()

    monkeypatch.setattr(kernels, "warm_up", warm_up)

    def compiles() -> bool:
        compiled.clear()
        kernels.compile_missing()
        return bool(compiled)

    assert compiles() and not compiles()
    index.unlink()
    assert compiles() and not compiles()
    index.write_text("of one more kernel")
    assert not compiles()
    note = folder / cache._NOTE
    for text in ("", "torn", "\xff"):
        note.write_bytes(text.encode("latin-1"))
        assert compiles() and not compiles()
    monkeypatch.setattr(kernels, "warm_up", lambda: compiled.append(1))
    for path in folder.rglob("*.nb*"):
        path.unlink()
    assert compiles() and compiles()  # nothing could be kept


def add_one(x: int) -> int:
    return x + 1


def load() -> bool:
    """Call a kernel first, as in a new process; return whether that compiled it."""
    kernel: Any = cache.njit()(add_one)
    assert kernel(1) == 2 and REPORT.status() == ""
    return bool(kernel.stats.cache_misses)


@pytest.mark.parametrize("content", [b"", b"damaged", b"\x80\x05"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_damaged_files_of_a_kernel_are_replaced(folder: Path, suffix: str, content: bytes) -> None:
    assert load() and not load()
    (path,) = folder.rglob(f"*add_one*.{suffix}")
    path.write_bytes(content)
    assert load() and not load()


def test_the_folder_is_named_by_all_files_that_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(cache.__file__).parents[1]
    files = {path for path in package.rglob("*.py") if "kernels.cache import njit" in path.read_text()}
    inside = {path for path in (package / "kernels").glob("*.py") if path.name != "cache.py"}
    assert set(cache.sources()) == files | inside
    before = cache._hash.__wrapped__()
    monkeypatch.setattr(cache, "sources", lambda: sorted(files | inside)[:-1])
    assert cache._hash.__wrapped__() != before


def test_a_kernel_that_cannot_be_saved_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the kernels are not noted as complete, so that the next job tries again at its start."""

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Cache, "_save_overload", fail)
        assert load() and load()
    (line,) = [record.message for record in caplog.records if "cannot be kept" in record.message]
    assert str(folder) in line and "No space left on device" in line
    cache.note_complete()
    assert not cache.is_complete()
    cache._warn_not_kept.cache_clear()
    cache.note_complete()
    assert cache.is_complete()


def test_a_process_that_is_forked_while_a_thread_compiles_can_compile() -> None:
    taken = threading.Event()

    def compile_slowly() -> None:
        with cache._compiling, global_compiler_lock:
            taken.set()
            threading.Event().wait(0.3)

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    taken.wait()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        with global_compiler_lock:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
