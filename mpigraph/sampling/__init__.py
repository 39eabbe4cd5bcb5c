"""What the ranks ask of each other: control calls, sampling rounds, and the loop in which servers answer."""
