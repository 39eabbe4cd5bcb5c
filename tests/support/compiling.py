"""Kernels that are not in numba's cache are compiled by one of the ranks that need them; the others load them."""

from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def compile_once(folder: Path) -> None:
    """Hold a kernel's file in a folder, which all ranks see, while it is looked up in the cache or compiled."""
    compile_or_load = Dispatcher.compile

    def in_turn(kernel: Dispatcher, signature: Any) -> Any:
        name = f"{kernel.py_func.__module__}.{kernel.py_func.__name__}.lock"
        with global_compiler_lock, open(folder / name, "w") as file:  # a kernel that it calls has a file of its own
            flock(file, LOCK_EX)
            return compile_or_load(kernel, signature)

    Dispatcher.compile = in_turn
