"""Files: whether llama.cpp survives a model's, what outlives the process, and how they are written whole."""
