"""Names of other packages for this library: scripts written for DGL run unchanged (:mod:`.dgl`)."""
