"""What the engine of the fixture `two_slots` is started with."""

from nnrp_sched_patches.launch import LaunchOptions

SLOTS = 2
"""Requests that it runs at once."""
OPTIONS = LaunchOptions(
    http="127.0.0.1:0",
    patch=True,
    vllm_arguments=("--max-num-seqs", str(SLOTS), "--scheduling-policy", "priority"),
)
