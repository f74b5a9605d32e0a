"""What the benchmarks are made of: llama.cpp's own tools, files of any shape, runs, figures."""
