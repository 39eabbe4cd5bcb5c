"""Rows of a table, gathered when somebody looks at them.

A sum over neighbours reads each row of a block's sources about once. To gather the rows before costs several times as
much as the sum: they are read, written and read again, most of it in memory, as blocks do not fit in caches. So the
sources of a block can be a :class:`TableRows`, which is what gathering them would give, but :func:`.spmm` reads the
rows where they lie. Whatever else is done with it is done with the gathered rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

__all__ = ["TableRows", "first_rows"]

_Tensor = torch.Tensor
_KNOWN_WITHOUT_ROWS: set[Callable[..., Any]] = {
    *(getattr(_Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_sparse")),
    *(_Tensor.dim, _Tensor.size, _Tensor.numel, _Tensor.__len__, _Tensor.is_floating_point),
}


class TableRows(torch.Tensor):
    """``table[rows]``, not made yet; once made, it is that tensor, whatever is written to it.

    Attributes:
        table: [num_rows, ...], on the CPU; never written to through this.
        rows: int[n].
    """

    table: torch.Tensor
    rows: torch.Tensor
    _gathered: torch.Tensor | None

    @staticmethod
    def __new__(cls, table: torch.Tensor, rows: torch.Tensor) -> "TableRows":
        """Remember the table and int[n], its rows."""
        shape = (len(rows), *table.shape[1:])
        made: TableRows = _Tensor._make_wrapper_subclass(cls, shape, dtype=table.dtype)  # type: ignore[attr-defined]
        made.table, made.rows, made._gathered = table, rows, None
        return made

    @property
    def in_place(self) -> bool:
        """Whether nobody has asked for the rows, so that the table has them."""
        return self._gathered is None

    def gathered(self) -> torch.Tensor:
        """The rows; always the same tensor, whatever is traced, or only shapes are asked for, where it is made."""
        if self._gathered is None:
            with _disable_current_modes(), torch.inference_mode(False):
                self._gathered = self.table.index_select(0, self.rows)
        return self._gathered

    def first(self, n: int) -> torch.Tensor:
        """The first ``n`` rows, which are not to be written to."""
        return self.table.index_select(0, self.rows[:n]) if self._gathered is None else self._gathered[:n]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Do what Python asks for with the gathered rows; shape and type are known without."""
        if func in _KNOWN_WITHOUT_ROWS and args[0].in_place:
            with torch._C.DisableTorchFunctionSubclass():  # type: ignore[attr-defined]
                return func(*args, **(kwargs or {}))
        return _with_gathered(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """The same for what C++ asks for, such as a scripted module."""
        return _with_gathered(func, args, kwargs)


def first_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    """``x[:n]``, for reading, without gathering the others."""
    return x.first(n) if isinstance(x, TableRows) else x[:n]


def _with_gathered(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    def plain(x: Any) -> Any:
        return x.gathered() if isinstance(x, TableRows) else x

    return func(*tree_map(plain, tuple(args)), **tree_map(plain, dict(kwargs or {})))
