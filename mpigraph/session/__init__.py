"""The running job: what all ranks hold, the calls that they make together, the server's loop, start and end."""

import mpigraph.mpi  # noqa: F401  (before mpi4py.MPI, which would start MPI)
