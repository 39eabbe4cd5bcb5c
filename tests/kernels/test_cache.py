"""Where compiled kernels are kept, and kernels that are not compiled."""

import sys
from pathlib import Path

import pytest
from jobs import cannot_mount, clean_environment, run_job
from numba import config

from mpigraph.errors import StorageError
from mpigraph.kernels import cache


def nowhere(*_: object) -> None:
    raise RuntimeError("cannot cache function: no locator available")


def test_without_a_place_the_cache_is_in_a_folder_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(cache, "FunctionCache", nowhere)
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    cache.prepare()
    first = Path(config.CACHE_DIR)
    assert first.parent == tmp_path and first.stat().st_mode & 0o777 == 0o700
    cache.prepare()
    assert Path(config.CACHE_DIR) == first  # as the other ranks of the node do
    first.chmod(0o777)  # others may have put code there
    cache.prepare()
    assert Path(config.CACHE_DIR).parent == tmp_path and Path(config.CACHE_DIR) != first
    first.rmdir()
    first.symlink_to(tmp_path)
    cache.prepare()
    assert Path(config.CACHE_DIR) not in (first, tmp_path)


def test_where_nothing_can_be_written_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_candidates() -> list[str]:
        return ["/proc/self"]

    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(cache, "FunctionCache", nowhere)
    monkeypatch.setattr(cache.tempfile, "tempdir", None)
    monkeypatch.setattr(cache.tempfile, "_candidate_tempdir_list", no_candidates)
    with pytest.raises(StorageError, match="set TMPDIR or NUMBA_CACHE_DIR to a folder that can be written .No usable"):
        cache.prepare()


def test_with_a_place_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    cache.prepare()
    assert config.CACHE_DIR == ""


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
