"""Offline partitioning: assign nodes to parts, relabel, write shards. MPI only in ``over_mpi``; no torch."""
