"""Graphs in files: readers and writers of layouts of this library and of other programs; tables, edge lists, ids."""
