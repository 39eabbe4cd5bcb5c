"""Where compiled kernels are kept when neither the installation nor the user's home can be written.

numba keeps what it compiles beside the source, else in the user's cache, or in ``NUMBA_CACHE_DIR``, and raises an error
where it can write nowhere, as in containers and installations by an administrator. Then a folder of this user's in the
temporary directory is used, so that one rank of a node compiles and the others load.
"""

import os
import stat
import tempfile
import warnings
from pathlib import Path

from numba import config
from numba.core.caching import FunctionCache

from mpigraph.errors import StorageError

__all__ = ["prepare"]


def prepare() -> None:
    """Make numba find a place for its cache, before the first kernel asks for one.

    Raises:
        StorageError: there is none.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        # numpy warns where compiled integers wrap around, as hashes do
        warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning, r"mpigraph\.kernels")
        return
    try:
        FunctionCache(prepare)  # type: ignore[no-untyped-call]
    except RuntimeError:  # there is no place
        try:
            folder = private_folder(Path(tempfile.gettempdir()) / f"mpigraph-kernels-{os.getuid()}")
        except OSError as error:
            raise StorageError(
                "compiled kernels can be kept nowhere: set TMPDIR or NUMBA_CACHE_DIR to a folder that can be written "
                f"({error.strerror})"
            ) from None
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


def private_folder(path: Path) -> Path:
    """Return a folder that only this user can write, since numba runs what lies in its cache: ``path``, else a new one.

    One that another user has put there is not taken.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="mpigraph-kernels-"))


prepare()
