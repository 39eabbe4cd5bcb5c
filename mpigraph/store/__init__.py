"""A partitioned graph in memory: topology and row tensors in the hosts' windows."""
