"""The heads of models that llama_cpp_eagle3 knows by name: GGUF files beside this one."""
