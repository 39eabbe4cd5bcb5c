"""torch's process group over MPI."""
