"""An OpenAI-compatible server on the engine, with llama-server's flags, endpoints and figures (extra `serve`).

One thread owns the model and steps the engine (`worker`); an asyncio loop speaks HTTP. What goes between them are
prepared sequences in, and what came of each step out.
"""
