"""Copies of vLLM's modules, cut down to what a seam table speaks of, and changes to them."""

import ast
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeGuard

from nnrp_sched_patches.seam import Seam, SeamKind
from nnrp_sched_patches.source_tree import FunctionNode, SourceTree, is_generator, is_property

OTHER = "renamed_by_the_test"


def write_skeleton(source: Path, target: Path, seams: tuple[Seam, ...]) -> Path:
    """Copy the modules of `seams` from one `vllm` package folder into another, cut down.

    Kept are the classes and members that the table names, and the constructors, with every
    parameter and assignment to `self`; what functions do is not. Small, so quick to check.
    """
    tree = SourceTree(source)
    wanted: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for seam in seams:
        owner, _, name = seam.name.partition(".")
        wanted[seam.module][owner] |= {name, "__init__"}
    for module, owners in wanted.items():
        path = tree.module_path(module)
        assert path is not None, module
        kept = [
            _cut(node, owners[node.name])
            for node in tree.body(path)
            if isinstance(node, ast.ClassDef) and node.name in owners
        ]
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(ast.unparse(ast.Module(kept, [])))
    return target


def _cut(node: ast.ClassDef, members: set[str]) -> ast.stmt:
    node = copy.deepcopy(node)
    kept = [part for part in node.body if any(_binds(part, name) for name in members)]
    node.body = kept or _parsed("pass")
    for part in kept:
        if isinstance(part, FunctionNode):
            # Nothing that they do, but for what they set.
            end = _parsed("yield" if is_generator(part) else "pass")
            nodes = (each for statement in part.body for each in ast.walk(statement))
            part.body = [*[each for each in nodes if _assigns_to_self(each)], *end]
    return node


def _assigns_to_self(node: ast.AST) -> TypeGuard[ast.stmt]:
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Attribute) for target in targets)


Change = tuple[str, ast.Module]
"""What was done, and the module after it."""


def changes(source: str, seam: Seam) -> Iterator[Change]:
    """Every way in which a module's source can stop having a seam, one at a time."""
    *owners, name = seam.name.split(".")
    for what, change in _ways(seam, name):
        tree = ast.parse(source)
        body = tree.body
        for owner in owners:
            body = _class(body, owner).body
        change(body)
        yield what, tree


def without_class(source: str, name: str) -> ast.Module:
    """A module's source with a class of it renamed."""
    tree = ast.parse(source)
    _class(tree.body, name).name = OTHER
    return tree


Edit = Callable[[list[ast.stmt]], None]


def _ways(seam: Seam, name: str) -> Iterator[tuple[str, Edit]]:
    """What can be done in the body of the seam's class, or of its module."""
    match seam.kind:
        case SeamKind.ABSENT:
            yield "added as a method", partial(_add, f"def {name}(self): pass")
            yield "added as an attribute", partial(_add, f"{name} = None")
            return
        case SeamKind.INSTANCE_ATTRIBUTE:
            yield "renamed", partial(_rename_on_self, name)
            yield "set elsewhere", _move_out_of_constructor
            return
        case _:
            pass
    for parameter in seam.without:
        yield f"with {parameter}", partial(_add_parameter, name, parameter)
    if seam.without and not seam.parameters:
        return
    yield "renamed", partial(_rename, name)
    yield "removed", partial(_remove, name)
    yield "of another kind", partial(_change_kind, name, seam.kind)
    for parameter in seam.parameters:
        yield f"without {parameter}", partial(_rename_parameter, name, parameter)


def _add(text: str, body: list[ast.stmt]) -> None:
    body.extend(_parsed(text))


def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _class(body: list[ast.stmt], name: str) -> ast.ClassDef:
    (found,) = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def _binds(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name
        case ast.Assign(targets=[ast.Name(id=bound)]) | ast.AnnAssign(target=ast.Name(id=bound)):
            return bound == name
        case _:
            return False


def _bound(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    found = [node for node in body if _binds(node, name)]
    assert found, name
    return found


def _functions(body: list[ast.stmt], name: str) -> Iterator[FunctionNode]:
    for node in _bound(body, name):
        assert isinstance(node, FunctionNode)
        yield node


def _rename(name: str, body: list[ast.stmt]) -> None:
    for node in _bound(body, name):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                node.name = OTHER
            case (
                ast.Assign(targets=[ast.Name() as target])
                | ast.AnnAssign(target=ast.Name() as target)
            ):
                target.id = OTHER
            case _:
                raise AssertionError(ast.dump(node))


def _remove(name: str, body: list[ast.stmt]) -> None:
    gone = _bound(body, name)
    body[:] = [node for node in body if node not in gone] or _parsed("pass")


def _change_kind(name: str, kind: SeamKind, body: list[ast.stmt]) -> None:
    if kind is SeamKind.PROPERTY:
        for function in _functions(body, name):
            assert is_property(function)
            function.decorator_list.clear()
        return
    _remove(name, body)
    other = "async def {}(self): pass" if kind is SeamKind.FUNCTION else "def {}(self): pass"
    body.extend(_parsed(other.format(name)))


def _arguments(function: FunctionNode) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _rename_parameter(name: str, parameter: str, body: list[ast.stmt]) -> None:
    for function in _functions(body, name):
        for argument in _arguments(function):
            if argument.arg == parameter:
                argument.arg = OTHER


def _add_parameter(name: str, parameter: str, body: list[ast.stmt]) -> None:
    for function in _functions(body, name):
        function.args.kwonlyargs.append(ast.arg(parameter))
        function.args.kw_defaults.append(ast.Constant(None))


def _rename_on_self(name: str, body: list[ast.stmt]) -> None:
    for function in _functions(body, "__init__"):
        for part in ast.walk(function):
            if isinstance(part, ast.Attribute) and part.attr == name:
                part.attr = OTHER


def _move_out_of_constructor(body: list[ast.stmt]) -> None:
    for function in _functions(body, "__init__"):
        function.name = OTHER
