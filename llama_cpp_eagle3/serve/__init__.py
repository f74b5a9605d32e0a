"""An OpenAI-compatible server on the engine, with llama-server's flags, endpoints and metrics (extra `serve`).

One thread owns the model and steps the engine (`engine_thread`); an asyncio loop serves HTTP. Sequences that were
prepared in an `executor` go from the loop to the thread, and the events of each step go back.
"""
