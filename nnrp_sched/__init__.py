"""A scheduler's view of agent programs, from the orchestrator to vLLM's engine, over NNRP/1."""

__version__ = "0.1.0"
