"""The prefetch instruction of the CPU: load a cache line before it is needed.

Where the code between random accesses to a large table branches, the CPU cannot run ahead to the next access, and each
one waits for memory in turn; a prefetch a few elements ahead lets these waits overlap.
"""

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic


def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Type and emit the instruction: numba's protocol for intrinsics."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, args[0])
        tools: Any = cgutils
        at = [*[ir.IntType(64)(0)] * (array_type.ndim - 1), args[1]]
        element = tools.get_item_pointer(context, builder, array_type, view, at, wraparound=False)
        address = builder.bitcast(element, ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        function = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # llvm.prefetch(address, 0 = read, 3 = keep in all cache levels, 1 = data)
        builder.call(function, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), emit


def _nothing(array: Any, index: Any) -> None:
    """Do nothing in Python (``NUMBA_DISABLE_JIT=1``)."""


prefetch: Any = _nothing if config.DISABLE_JIT else intrinsic(_prefetch)  # type: ignore[attr-defined]
"""``prefetch(array, index)``, inside a kernel, loads the cache line of ``array[index]`` (LLVM's ``llvm.prefetch``).

The index is not checked. In an array of several axes, which is C-contiguous, it counts the elements.
"""
