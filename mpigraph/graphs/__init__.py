"""Graphs and blocks in memory, and message passing on them. torch begins here."""
