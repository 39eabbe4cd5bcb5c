"""Training on the whole graph, without sampling: each node on one trainer, halo rows exchanged for each layer."""
