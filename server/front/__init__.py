"""The front of an API server process: keys, limits, errors in OpenAI's shape, and the access log.

It has one request's context at a time. It may know the ladder's names and lengths and the parts in the app's state, but
neither vLLM's classes (``app/vllm_adapter.py``) nor the engine. ``bodies`` reads long bodies, ``limits`` counts.
"""
