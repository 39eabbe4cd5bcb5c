"""Offline partitioning: assign nodes to parts, relabel, write shards. numpy, numba, pymetis; no MPI, no torch."""
