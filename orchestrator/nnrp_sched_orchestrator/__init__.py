"""The agent side: programs of many agents over a few shared NNRP sessions."""
