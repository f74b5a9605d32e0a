"""Files: checks that llama.cpp survives a model's file, files that outlive the process, and writing whole files."""
