"""Sparse optimizers of distributed embeddings."""
