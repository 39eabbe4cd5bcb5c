"""MPI below the graph: roles, agreement, windows, rounds, deadlines. Differences between MPIs end here."""
