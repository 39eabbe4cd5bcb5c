"""Every exception that the library raises.

All derive from :class:`MPIGraphError`. Where users of DGL (or of plain Python) expect a built-in class, the error
derives from that class too, so that ``except ValueError`` keeps working. Checks of arguments are here, too.
"""

import operator
from collections.abc import Mapping, Sequence

from mpigraph.namespaces import attach

__all__ = [
    "ClosedError",
    "CollectiveError",
    "DGLError",
    "EdgeTypeError",
    "FieldNameError",
    "GraphDataError",
    "InvalidArgumentError",
    "MPIGraphError",
    "MaskLengthError",
    "NodeTypeError",
    "NotInitializedError",
    "OtherVersionError",
    "OutOfRangeError",
    "PartitionError",
    "ShardFormatError",
    "SharedMemoryError",
    "StorageError",
    "TensorMismatchError",
]


class MPIGraphError(Exception):
    """Base class of all errors of this library (DGL's ``DGLError``).

    Attributes:
        everywhere: whether every rank raises this same error; then only one of them reports it.
        status: the exit status of a job that the error ends.
    """

    everywhere = False
    status = 1


class InvalidArgumentError(MPIGraphError, ValueError):
    """An argument has a value that the function does not accept.

    The message says which argument, and what was expected.
    """


class OutOfRangeError(MPIGraphError, IndexError):
    """A node, edge or row id lies outside its range.

    Check the ids that the message names: partitioning gave nodes and edges new ones.
    """


class _UnknownNameError(MPIGraphError, KeyError):
    def __str__(self) -> str:  # KeyError would quote the message
        return str(self.args[0]) if self.args else ""


class NodeTypeError(_UnknownNameError):
    """A node type is unknown, or missing where there are several.

    Name one of ``g.ntypes``.
    """


class EdgeTypeError(_UnknownNameError):
    """An edge type is unknown, ambiguous, or missing where there are several.

    Name one of ``g.canonical_etypes``.
    """


class FieldNameError(_UnknownNameError):
    """A feature of this name does not exist.

    ``g.ndata`` and ``g.edata`` list the names; on typed graphs ``g.nodes[ntype].data``.
    """


class MaskLengthError(MPIGraphError, AssertionError, ValueError):
    """A mask does not have one entry for each node or edge of its type.

    Make it of length ``g.num_nodes(ntype)`` or ``g.num_edges(etype)``.
    """


class TensorMismatchError(MPIGraphError, AssertionError, ValueError):
    """A named tensor exists with another shape, dtype or policy.

    Give the new one another name, or close the old one first.
    """


class GraphDataError(MPIGraphError, ValueError):
    """An input graph contradicts itself (an endpoint out of range, a feature of the wrong length).

    Mend the input; the message names the file, and the row where there is one.
    """


class PartitionError(MPIGraphError, ValueError):
    """A partition book, an assignment or a partition configuration is not usable.

    Partition the graph again, or give the ``.json`` of the partitioning that the files are of.
    """


class ShardFormatError(MPIGraphError, OSError):
    """A shard file is missing, truncated, damaged or of another program; the message names file and dataset.

    Copy the file again, or partition again with ``--resume``; ``python -m mpigraph verify`` checks all files.
    """


class OtherVersionError(ShardFormatError):
    """A checkpoint is of another version of this library.

    It is not damaged, so a job neither begins anew beside it nor replaces it.
    """


class StorageError(MPIGraphError, OSError):
    """A file cannot be written (full disk, permissions, another writer), or a folder cannot be read.

    Mend what the message names: space, permissions, or the other writer.
    """


class SharedMemoryError(MPIGraphError, MemoryError):
    """A node's memory, or its shared memory (``/dev/shm``), is too small for the rows of its hosts.

    Use more nodes, smaller caches, features in 16 bits (``feat_dtype``), or a larger ``/dev/shm``.
    """


class NotInitializedError(MPIGraphError, AssertionError, RuntimeError):
    """A distributed object was used before ``mpigraph.distributed.initialize()``.

    Call ``initialize()`` first, in every script and every start.
    """


class ClosedError(MPIGraphError, RuntimeError):
    """An object was used after its ``close()``.

    Make a new one. A loader has one iterator at a time: a new pass closes the one before.
    """


class CollectiveError(MPIGraphError, RuntimeError):
    """A collective step failed on at least one rank; raised on every rank, naming those where it failed.

    Mend the cause on the ranks that the message names. Trainers must make the same collective calls in the same order.
    """


def check_integer(name: str, value: object, least: int, most: int = 2**63 - 1) -> int:
    """Return an integer argument.

    Raises:
        InvalidArgumentError: ``value`` is not an integer from ``least`` to ``most``; names the argument.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        limit = f"<= {most}" if number is not None and number > most else f">= {least}"
        raise InvalidArgumentError(f"{name} must be an integer {limit} (got {value!r})")
    return number


def in_words(error: BaseException) -> str:
    """Return the text of an error that another library or Python raised, such as one of a name that is not there."""
    text = str(error) or repr(error)
    return f"there is no {text}" if type(error) is KeyError else text


def check_state(what: str, state: object, forms: Mapping[str, type]) -> None:
    """Check the values of a state dict.

    Args:
        what: names the object.
        state: the state dict.
        forms: the class of each required value by name; further values are allowed.

    Raises:
        InvalidArgumentError: it is not a dict, or a value is missing or of another class; names the value.
    """
    for name, form in forms.items():
        value = state.get(name) if isinstance(state, Mapping) else None
        if not isinstance(value, form):
            raise InvalidArgumentError(
                f"the state of {what} must have {name!r}, of {form.__name__} (got {type(value).__name__})"
            )


def is_plain(texts: Sequence[object]) -> bool:
    """Return whether all are strings, without surrogates and NUL."""
    try:
        return b"\0" not in "".join(texts).encode()  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return False


def check_text(name: str, value: object) -> str:
    """Return an argument that names something in files and messages.

    Raises:
        InvalidArgumentError: it is not a string, or holds surrogates or NUL, which files cannot; names the argument.
    """
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a string (got {value!r})")
    if not is_plain([value]):
        raise InvalidArgumentError(f"{name} must be without surrogates and NUL (got {value!r})")
    return value


DGLError = MPIGraphError
"""DGL's name of the base class."""

attach(__name__)
