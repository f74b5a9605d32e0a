"""Training of the bundled pair: the target, and an EAGLE-3 head on features of our own tap (extra: train)."""

import os

# torch then asks for pages of 2 MiB on Linux: a step allocates and frees gigabytes, whose pages of 4 KiB the kernel
# clears one by one, which is half of the step's time
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
