"""Rows that live on hosts: windows, owners, transports of remote rows, tensors. One place for each read and write."""
