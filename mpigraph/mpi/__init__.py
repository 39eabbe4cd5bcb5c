"""MPI below the graph: roles, agreement, messages, waiting, deadlines. Differences between MPIs end here."""

from mpigraph.mpi.start import load_mpi

load_mpi()
