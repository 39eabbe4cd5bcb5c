"""Starts MPI, which importing the library does not: tests take communicators before any job has started."""

from mpigraph.mpi.start import start_mpi

start_mpi()
