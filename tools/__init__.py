"""What builds and checks this repository; run from its root as `python -m tools.<name>`."""
