"""What an import error says: which extra of this project to install."""


def missing(module: str, extra: str, fault: ImportError) -> ImportError:
    """The error for a module whose framework is not there; to be raised from `fault`."""
    wanted = (fault.name or extra).partition(".")[0]
    return ImportError(
        f"{module} needs {wanted}, which is not installed: pip install 'nnrp-sched[{extra}]'",
        name=fault.name,
    )
