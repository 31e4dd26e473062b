"""The agent side: programs of many agents over a few shared NNRP sessions.

Empty until the orchestrator lands; the package exists so that the three source roots, their import
contracts and the wheel are in their final shape from the first release on.
"""
