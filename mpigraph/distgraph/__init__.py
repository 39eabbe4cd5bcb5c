"""The distributed objects: graph, tensor, embedding, partition book, splits."""
