"""Python source made from seam tables: a `vllm` package that has just what the tables ask for."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from nnrp_sched_patches.seam import Seam, SeamKind

_FORMS = {
    SeamKind.FUNCTION: "def {name}({parameters}): pass",
    SeamKind.ASYNC_FUNCTION: "async def {name}({parameters}): pass",
    SeamKind.ASYNC_GENERATOR: "async def {name}({parameters}): yield",
    SeamKind.PROPERTY: "@property\ndef {name}(self): pass",
    SeamKind.ATTRIBUTE: "{name} = None",
}


def write_source(root: Path, seams: Iterable[Seam]) -> Path:
    """Write the package folder `root` (its name is the package's) and return it."""
    modules: dict[str, dict[str, list[Seam]]] = defaultdict(lambda: defaultdict(list))
    root.mkdir(parents=True)
    (root / "__init__.py").write_text("")
    for seam in seams:
        owner, _, _ = seam.name.rpartition(".")
        if seam.kind is SeamKind.CLASS:
            modules[seam.module].setdefault(seam.name, [])
        else:
            modules[seam.module][owner].append(seam)
    for module, owners in modules.items():
        path = root.joinpath(*module.split(".")[1:])
        is_package = any(other.startswith(f"{module}.") for other in modules)
        path = path / "__init__.py" if is_package else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        blocks = [_block(owner, members) for owner, members in owners.items()]
        path.write_text("\n\n".join(blocks) + "\n")
    return root


def _block(owner: str, members: list[Seam]) -> str:
    assigned = [seam for seam in members if seam.kind is SeamKind.INSTANCE_ATTRIBUTE]
    written: dict[str, Seam] = {}
    for seam in members:
        if seam.kind in _FORMS:
            # Several rows may ask for one name, each with its parameters.
            known = written.get(seam.name, seam).parameters
            together = tuple(dict.fromkeys((*known, *seam.parameters)))
            written[seam.name] = msgspec.structs.replace(seam, parameters=together)
    lines = [_definition(seam, method=bool(owner)) for seam in written.values()]
    if assigned:
        # A constructor that is a seam itself keeps its parameters.
        named = written.get(f"{owner}.__init__")
        lines = [line for line in lines if "__init__" not in line]
        parameters = ", ".join(["self", *(named.parameters if named else ())])
        body = "; ".join(f"self.{seam.name.rpartition('.')[2]} = None" for seam in assigned)
        lines.append(f"def __init__({parameters}): {body}")
    if not owner:
        return "\n".join(lines)
    inner = "\n".join(lines or ["pass"]).replace("\n", "\n    ")
    return f"class {owner}:\n    {inner}"


def _definition(seam: Seam, *, method: bool) -> str:
    parameters = ", ".join([*(["self"] if method else []), *seam.parameters])
    name = seam.name.rpartition(".")[2]
    return _FORMS[seam.kind].format(name=name, parameters=parameters)
