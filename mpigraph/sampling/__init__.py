"""Sampling of neighbours: minibatches, hops, ways to choose, and the exchanges that carry requests to owners."""
