"""One machine instruction: ask for a cache line before it is needed.

Random accesses to large tables wait for memory one after the other wherever the code between them branches; asking a
few elements ahead lets those waits overlap.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["prefetch"]


def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """The instruction, typed and emitted."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, args[0])
        tools: Any = cgutils
        element = tools.get_item_pointer(context, builder, array_type, view, [args[1]], wraparound=False)
        address = builder.bitcast(element, ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        function = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = word(0), word(3), word(1)
        builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, index), emit


prefetch: Any = intrinsic(_prefetch)
"""``prefetch(array, index)``, inside a kernel, loads the cache line of ``array[index]`` (LLVM's ``llvm.prefetch``).

The index is not checked.
"""
