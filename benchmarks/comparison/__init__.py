"""Comparisons that `llama-cpp-eagle3 bench` does not make: llama.cpp's programs, recorded texts, fixed odds, plots."""
