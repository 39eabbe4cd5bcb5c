"""Rows that live on hosts: windows, owners, transports of far rows, tensors. One place for each read and write."""
