"""`llama-cpp-eagle3 bench`: plain decoding, draft="auto" and fixed chains on the same prompts."""
