"""Shard files and the partition configuration. numpy and h5py only."""
