"""Instructions that numba lacks: load a cache line before it is needed; copy a row by ``memcpy`` or past the caches.

Where the code between random accesses to a large table branches, the CPU cannot run ahead to the next access, and each
one waits for memory in turn; a prefetch a few elements ahead lets these waits overlap.

A store first loads its line into the cache, which costs as much as reading the row. A result larger than a core's cache
is evicted again before it is used; *streaming* stores write it to memory and avoid both.
"""

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_STREAM_ALIGNMENT = 16  # bytes


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


def _nothing(*args: Any) -> None:
    """Do nothing in Python (``NUMBA_DISABLE_JIT=1``)."""


prefetch: Any = _nothing if config.DISABLE_JIT else intrinsic(_prefetch)  # type: ignore[attr-defined]
"""``prefetch(array, index)``, inside a kernel, loads the cache line of ``array[index]`` (LLVM's ``llvm.prefetch``).

The index is not checked. In an array of several axes, which is C-contiguous, it counts the elements.
"""


def _item(context: Any, builder: Any, signature: Any, args: Any, which: int) -> tuple[Any, Any]:
    """Return a pointer to an item of argument ``which``, indexed by the next argument; and a view of the argument."""
    tools: Any = cgutils
    array_type = signature.args[which]
    view = context.make_array(array_type)(context, builder, args[which])
    at = [args[which + 1], *[_WORD(0)] * (array_type.ndim - 1)]
    return tools.get_item_pointer(context, builder, array_type, view, at, wraparound=False), view


def _ends(context: Any, builder: Any, signature: Any, args: Any) -> tuple[Any, Any, Any, Any]:
    """Return pointers to target and source row, the words of a row, and the bytes of a word."""
    tools: Any = cgutils
    target, _ = _item(context, builder, signature, args, 0)
    source, view = _item(context, builder, signature, args, 2)
    return target, source, tools.unpack_tuple(builder, view.shape)[1], view.itemsize


def _copy_row(typingctx: Any, out: Any, place: Any, table: Any, row: Any) -> Any:
    """Type and emit the call: numba's protocol for intrinsics."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tools: Any = cgutils
        tools.raw_memcpy(builder, *_ends(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(out, place, table, row), emit


def _stream_row(typingctx: Any, out: Any, place: Any, table: Any, row: Any) -> Any:
    """Type and emit streaming stores of 16 bytes.

    Stores of 8 bytes are half as fast as ``memcpy`` where the rows come from memory: loads need the same buffers in
    which lines are assembled, so these are sent to memory half full.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tools: Any = cgutils
        target, source, width, itemsize = _ends(context, builder, signature, args)
        nbytes = builder.mul(width, itemsize)
        streaming = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])

        vector = ir.VectorType(_WORD, 2).as_pointer()
        source, target = builder.bitcast(source, vector), builder.bitcast(target, vector)
        with tools.for_range(builder, builder.lshr(nbytes, _WORD(4))) as loop:
            chunk = builder.load(builder.gep(source, [loop.index]), align=1)
            store = builder.store(chunk, builder.gep(target, [loop.index]), align=_STREAM_ALIGNMENT)
            store.set_metadata("nontemporal", streaming)
        return context.get_dummy_value()

    return types.void(out, place, table, row), emit


def _order_streams(typingctx: Any) -> Any:
    """Type and emit a fence."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit


def _assign_row(out: Any, place: Any, table: Any, row: Any) -> None:
    """Copy in Python (``NUMBA_DISABLE_JIT=1``)."""
    out[place] = table[row]


copy_row: Any = _assign_row if config.DISABLE_JIT else intrinsic(_copy_row)  # type: ignore[attr-defined]
"""``copy_row(out, place, table, row)``, inside a kernel: ``out[place] = table[row]``.

The arrays are two-dimensional and C-contiguous, of one dtype and width; the indices are int64 and are not checked.
"""

stream_row: Any = _assign_row if config.DISABLE_JIT else intrinsic(_stream_row)  # type: ignore[attr-defined]
"""The same past the caches; :data:`order_streams` has to follow.

Rows must be a multiple of 16 bytes, and those of ``out`` begin at one.
"""

order_streams: Any = _nothing if config.DISABLE_JIT else intrinsic(_order_streams)  # type: ignore[attr-defined]
"""``order_streams()``, inside a kernel: streamed stores become visible before all later stores."""


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return a value of type ``kind`` whose arrays do not name the owners of their memory."""
    tools: Any = cgutils
    kinds: Any = types
    if isinstance(kind, kinds.Array):
        view = context.make_array(kind)(context, builder, value)
        view.meminfo, view.parent = (tools.get_null_value(owner.type) for owner in (view.meminfo, view.parent))
        return view._getvalue()
    if isinstance(kind, kinds.BaseTuple):
        values = zip(kind, tools.unpack_tuple(builder, value), strict=True)
        return context.make_tuple(builder, kind, [_without_owner(context, builder, *one) for one in values])
    return value


def _borrowed(typingctx: Any, values: Any) -> Any:
    """Type and emit the views: numba's protocol for intrinsics."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # numba takes a result for a reference of its own: releasing one without an owner does nothing
        return _without_owner(context, builder, values, args[0])

    return values(values), emit


def _as_they_are(values: Any) -> Any:
    """Return them in Python (``NUMBA_DISABLE_JIT=1``)."""
    return values


borrowed: Any = _as_they_are if config.DISABLE_JIT else intrinsic(_borrowed)  # type: ignore[attr-defined]
"""``borrowed(values)``, inside a kernel: a tuple with the same arrays, in tuples of it too, but without their owners.

An array that has an owner counts references, with atomic instructions, wherever a function takes it or a slice of it,
and in a loop with many branches numba cannot remove them. A borrowed one, its slices too, counts none. So it is valid
only while something else holds the memory. Borrow parameters of a kernel alone: its caller holds them until it returns
(of a call by Python numba's wrapper does, and the caller's own names). Not an array made in the kernel, which numba
frees after its last use by its own name; and return no borrowed array.
"""
