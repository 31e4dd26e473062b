"""What the server needs of a serving engine (`port`), and a deterministic one for conformance."""
