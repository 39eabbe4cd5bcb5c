"""Graphs and blocks in memory, and message passing on them. torch begins here.

From the data to the operations, each module knowing those above it:

* ``fields``: names of fields (``NID``, ``EID``, ...), ids and values as tensors, and features by name of one node type
  or relation (:class:`Fields`, :class:`Frame`) and of a whole graph (:class:`Frames`).
* ``messages``: what a message and a reduction are; their values edge by edge.
* ``aggregate``: the edges of one relation as CSC (:class:`InEdges`), and messages summed at their destinations, as
  sparse matrix products where that is possible.
* ``face``: what users ask every graph, also a distributed one: types, counts, features, edges, degrees and parts.
* ``in_memory``: the answers of graphs and blocks in memory; sides, devices, scopes.
* ``message_passing``: ``update_all``, ``apply_edges`` and ``multi_update_all`` on top of these.
* ``hetero``, ``block``: the two kinds of graph that users meet, :class:`HeteroGraph` and :class:`Block`.
* ``transforms``, ``pyg``: graphs without types, DGL's functions of graphs, and PyG's graphs.
"""
