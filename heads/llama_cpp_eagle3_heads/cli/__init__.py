"""Commands of `llama-cpp-eagle3` that make and describe heads."""
