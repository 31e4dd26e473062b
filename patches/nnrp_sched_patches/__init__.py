"""The explicitly activated vLLM layer: the only package here that imports vllm or wrapt."""
