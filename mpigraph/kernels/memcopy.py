"""Copy one row of a table, or some bytes, by C's ``memcpy``, which is faster than any loop over its words."""

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["copy_bytes", "copy_row"]


def _copy_row(typingctx: Any, out: Any, place: Any, table: Any, row: Any) -> Any:
    """Type and emit the call: numba's protocol for intrinsics."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tools: Any = cgutils
        word = ir.IntType(64)

        def address(which: int) -> tuple[Any, Any]:
            array_type = signature.args[which]
            view = context.make_array(array_type)(context, builder, args[which])
            at = [args[which + 1], word(0)]
            return tools.get_item_pointer(context, builder, array_type, view, at, wraparound=False), view

        target, _ = address(0)
        source, view = address(2)
        width = tools.unpack_tuple(builder, view.shape)[1]
        tools.raw_memcpy(builder, target, source, width, view.itemsize)
        return context.get_dummy_value()

    return types.void(out, place, table, row), emit


def _assign_row(out: Any, place: Any, table: Any, row: Any) -> None:
    """What Python does in its place (``NUMBA_DISABLE_JIT=1``)."""
    out[place] = table[row]


copy_row: Any = _assign_row if config.DISABLE_JIT else intrinsic(_copy_row)  # type: ignore[attr-defined]
"""``copy_row(out, place, table, row)``, inside a kernel: ``out[place] = table[row]``.

The arrays are two-dimensional and C-contiguous, of one dtype and width; the indices are int64 and are not checked.
"""


def _copy_bytes(typingctx: Any, out: Any, place: Any, values: Any, begin: Any, count: Any) -> Any:
    """Type and emit the call: numba's protocol for intrinsics."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tools: Any = cgutils

        def address(which: int) -> Any:
            array_type = signature.args[which]
            view = context.make_array(array_type)(context, builder, args[which])
            return tools.get_item_pointer(context, builder, array_type, view, [args[which + 1]], wraparound=False)

        tools.raw_memcpy(builder, address(0), address(2), args[4], ir.IntType(64)(1))
        return context.get_dummy_value()

    return types.void(out, place, values, begin, count), emit


def _assign_bytes(out: Any, place: Any, values: Any, begin: Any, count: Any) -> None:
    """What Python does in its place (``NUMBA_DISABLE_JIT=1``)."""
    out[place : place + count] = values[begin : begin + count]


copy_bytes: Any = _assign_bytes if config.DISABLE_JIT else intrinsic(_copy_bytes)  # type: ignore[attr-defined]
"""``copy_bytes(out, place, values, begin, count)``, inside a kernel: ``out[place : place + count]`` becomes them.

The arrays are one-dimensional, C-contiguous and of uint8; place, begin and count are int64 and are not checked.
"""
