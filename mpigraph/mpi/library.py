"""Which MPI this is."""

from mpi4py import MPI

__all__ = ["library_version", "thread_level"]

_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}


def library_version() -> str:
    """Name and version, one line. Local; no communication."""
    return " ".join(MPI.Get_library_version().rstrip("\0").split()[:8])


def thread_level() -> str:
    """What threads may do: "single", "funneled", "serialized" or "multiple". Local; no communication."""
    return _LEVELS[MPI.Query_thread()]
