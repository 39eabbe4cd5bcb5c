"""Kernels that are not in numba's cache are compiled by one of the ranks that need them; the others load them."""

from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def compile_once(folder: Path) -> None:
    """Lock a kernel's file in a folder, which all ranks see, while the kernel is looked up in the cache or compiled."""
    compile_or_load = Dispatcher.compile

    def in_turn(kernel: Dispatcher, signature: Any) -> Any:
        name = f"{kernel.py_func.__module__}.{kernel.py_func.__name__}"
        if not name.startswith("mpigraph."):  # numba's own functions are not kept, and may be called as one another
            return compile_or_load(kernel, signature)
        with global_compiler_lock, open(folder / f"{name}.lock", "w") as file:  # those that it calls have other files
            flock(file, LOCK_EX)
            return compile_or_load(kernel, signature)

    Dispatcher.compile = in_turn
