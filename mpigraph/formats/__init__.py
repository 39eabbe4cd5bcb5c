"""Partitions that PyG has written, and partitioned graphs written for DGL and PyG."""
