"""From the summary of a job to a verdict, a page and a trace; no MPI, no torch, no running job."""
