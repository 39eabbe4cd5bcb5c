"""Other packages' names for what is here: scripts written for DGL run as they are (:mod:`.dgl`)."""
