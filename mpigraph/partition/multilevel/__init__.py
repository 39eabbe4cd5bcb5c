"""Assign nodes to parts by a multilevel method that runs on any number of ranks and gives the same parts on each.

Runs on the ranks of an :class:`~mpigraph.partition.exchange.Exchange`; one rank needs no MPI. Nodes are
owned in contiguous ranges of their ids, on every level: a cluster belongs to the owner of the node that it began
with::

    levels         symmetric adjacency at the owners, ghosts, followers of nodes; size-constrained label propagation in
                   synchronous sub-rounds; clusters become nodes of the next level
    assign         the whole; the last level, made sparse, is partitioned by METIS on rank 0
    refinement     on every level back: moves by gain, then balance

The result must not depend on the number of ranks. So every tie is broken by a hash of the *key* of a node, the id of
the node of the finest level that it stands for; all sums are of integers; moves of a sub-round are judged by the state
before it, and moves that compete for little space are taken in the order of hashes or by histograms.

The whole follows ParHIP: Meyerhenke, Sanders, Schulz, "Parallel Graph Partitioning for Complex Networks", IEEE TPDS
2017. Refinement is after Jet: Gilbert, Madduri, Boman, Rajamanickam, "Jet: Multilevel Graph Partitioning on Graphics
Processing Units", SIAM SISC 2024.
"""
