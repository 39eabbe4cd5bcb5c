"""The running job: what all ranks hold, the calls that they make together, the server's loop, start and end."""
