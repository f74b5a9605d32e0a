"""EAGLE-3 heads for llama_cpp_eagle3: conversion of checkpoints, and training from a GGUF alone."""
