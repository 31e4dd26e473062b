"""Seams: the places in vLLM's source that the patch layer relies on, and how they are checked.

The check reads source by AST. It imports nothing, so it works before the engine starts, on wheels
that were only unpacked, and in a process that must not load torch.
"""

import ast
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from nnrp_sched_patches.source_tree import (
    FunctionNode,
    SourceTree,
    assigns_to_self,
    is_generator,
    is_property,
    parameter_names,
)


class SeamKind(StrEnum):
    """What a seam's name must stand for."""

    MODULE = "module"
    CLASS = "class"
    FUNCTION = "function"
    ASYNC_FUNCTION = "async function"
    ASYNC_GENERATOR = "async generator"
    PROPERTY = "property"
    ATTRIBUTE = "attribute"
    """A name bound in a class or module body: an enum member, a struct field, a constant."""
    INSTANCE_ATTRIBUTE = "instance attribute"
    """A name that the class's `__init__` assigns to `self`."""
    ABSENT = "absent"
    """The name must not exist: what we add there must not replace something of vLLM's."""


class Seam(Struct, frozen=True):
    """One place in vLLM's source, and what it must look like."""

    module: str
    """Dotted name from `vllm` on."""
    name: str
    """Qualified name inside the module (`AsyncLLM.__init__`); empty for the module itself."""
    kind: SeamKind
    parameters: tuple[str, ...] = ()
    """Parameters that must exist, by name; more may follow in later versions of vLLM."""
    without: tuple[str, ...] = ()
    """Parameters that must not exist: what tells an older family from a newer one."""
    reexported: bool = False
    """Whether the module may get the name by `from other import name`, which is then followed."""

    def __str__(self) -> str:
        return f"{self.module}:{self.name}" if self.name else self.module


class SeamFault(Struct, frozen=True):
    """A seam that the source does not have as it must be."""

    seam: Seam
    problem: str

    def __str__(self) -> str:
        return f"{self.seam} {self.problem}"


def verify(root: Path, seams: Iterable[Seam]) -> list[SeamFault]:
    """Check `seams` against the `vllm` package folder `root`; returns every fault, in order."""
    source = SourceTree(root)
    problems = ((seam, _problem(source, seam)) for seam in seams)
    return [SeamFault(seam=seam, problem=problem) for seam, problem in problems if problem]


def _problem(source: SourceTree, seam: Seam) -> str | None:
    """What keeps the source from having `seam`; None when it has it."""
    absent = seam.kind is SeamKind.ABSENT
    path = source.module_path(seam.module)
    if not seam.name:
        if path is None:
            return None if absent else "is missing: there is no such module"
        return "exists, and must not" if absent else None
    if path is None:
        return f"is missing: there is no module {seam.module}"
    try:
        body = source.body(path)
        return _name_problem(source, seam, body)
    except SyntaxError as error:
        return f"cannot be read: {error}"


def _name_problem(source: SourceTree, seam: Seam, body: list[ast.stmt]) -> str | None:
    *owners, last = seam.name.split(".")
    module, follow = seam.module, seam.reexported
    for depth, owner in enumerate(owners, start=1):
        node, module, missing = source.resolve(module, body, owner, follow=follow)
        if not isinstance(node, ast.ClassDef):
            path = ".".join(owners[:depth])
            return missing if node is None else f"is missing: {path} is not a class"
        if seam.kind is SeamKind.INSTANCE_ATTRIBUTE and depth == len(owners):
            return (
                None
                if assigns_to_self(node, last)
                else f"is missing: {node.name}.__init__ does not set self.{last}"
            )
        # Only the outermost name can come from another module.
        body, follow = node.body, False
    node, _, missing = source.resolve(module, body, last, follow=follow)
    if seam.kind is SeamKind.ABSENT:
        return None if node is None else "exists already, and must not"
    return missing if node is None else _shape_problem(node, seam)


def _shape_problem(node: ast.stmt, seam: Seam) -> str | None:
    kind = _kind(node)
    if kind is not seam.kind:
        return f"is of kind {kind}, not {seam.kind}"
    if isinstance(node, FunctionNode):
        names = parameter_names(node)
        lacking = [name for name in seam.parameters if name not in names]
        if lacking:
            return f"lacks the parameter {', '.join(lacking)}"
        unwanted = [name for name in seam.without if name in names]
        if unwanted:
            return f"has the parameter {', '.join(unwanted)}, which this family must not have"
    return None


def _kind(node: ast.stmt) -> SeamKind:
    """The kind of what a statement binds."""
    if isinstance(node, ast.ClassDef):
        return SeamKind.CLASS
    if not isinstance(node, FunctionNode):
        return SeamKind.ATTRIBUTE
    if is_property(node):
        return SeamKind.PROPERTY
    if isinstance(node, ast.FunctionDef):
        return SeamKind.FUNCTION
    return SeamKind.ASYNC_GENERATOR if is_generator(node) else SeamKind.ASYNC_FUNCTION
