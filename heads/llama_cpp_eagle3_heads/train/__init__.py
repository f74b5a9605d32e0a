"""Training of the bundled pair: the target, and an EAGLE-3 head on features of our own tap (extra: train)."""
