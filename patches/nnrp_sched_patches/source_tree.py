"""Python source read as syntax: where a dotted name is defined, without importing anything."""

import ast
from collections.abc import Iterator
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_REEXPORTS = 8


class SourceTree:
    """The source of one top-level package, parsed as far as it is asked for.

    `root` is the package's own folder. Whoever needs a fresh look makes a new tree.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parsed: dict[Path, ast.Module] = {}

    def module_path(self, module: str) -> Path | None:
        """The source file of a module, given by its full dotted name; None when there is none."""
        _, *parts = module.split(".")
        folder = self._root.joinpath(*parts)
        candidates = [folder / "__init__.py"]
        if parts:
            candidates.append(folder.parent / f"{parts[-1]}.py")
        return next((path for path in candidates if path.is_file()), None)

    def body(self, path: Path) -> list[ast.stmt]:
        """The statements of a source file."""
        if path not in self._parsed:
            self._parsed[path] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        return self._parsed[path].body

    def resolve(
        self, module: str, body: list[ast.stmt], name: str, *, follow: bool
    ) -> tuple[ast.stmt | None, str, str]:
        """The statement that binds `name` in a body of `module`.

        With `follow`, imports of the name are followed from module to module. Returns the
        statement or None, the module it stands in, and what to tell when there is none.
        """
        for _ in range(_MAX_REEXPORTS):
            node = binding(body, name)
            if not isinstance(node, ast.ImportFrom):
                return node, module, f"is missing: {module} does not define {name}"
            source = self._imported_module(module, node)
            if not follow:
                return None, module, f"is missing: {module} only imports {name}, from {source}"
            path = self.module_path(source)
            if path is None:
                problem = f"is missing: {module} imports {name} from {source}, which is not there"
                return None, module, problem
            name = next(part.name for part in node.names if (part.asname or part.name) == name)
            module, body = source, self.body(path)
        return None, module, f"is missing: {name} is imported in a circle"

    def _imported_module(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name of the module that an import statement of `module` names."""
        if node.level == 0:
            return node.module or ""
        path = self.module_path(module)
        is_package = path is not None and path.name == "__init__.py"
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + is_package]
        return ".".join([*kept, node.module] if node.module else kept)


def binding(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """The last statement that binds `name`, as at run time; None when nothing does."""
    found: ast.stmt | None = None
    for node in _statements(body):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                bound = node.name == name
            case ast.Assign():
                bound = any(
                    isinstance(part, ast.Name) and part.id == name
                    for target in node.targets
                    for part in ast.walk(target)
                )
            case ast.AnnAssign():
                bound = isinstance(node.target, ast.Name) and node.target.id == name
            case ast.ImportFrom():
                bound = any((part.asname or part.name) == name for part in node.names)
            case _:
                bound = False
        if bound:
            found = node
    return found


def assigns_to_self(owner: ast.ClassDef, name: str) -> bool:
    """Whether the class's own `__init__` assigns `self.<name>` somewhere."""
    constructor = binding(owner.body, "__init__")
    for node in ast.walk(constructor) if constructor is not None else ():
        assigned: list[ast.expr]
        match node:
            case ast.Assign(targets=targets):
                assigned = targets
            case ast.AnnAssign(target=target):
                assigned = [target]
            case _:
                continue
        for place in assigned:
            match place:
                case ast.Attribute(value=ast.Name(id="self"), attr=attribute) if attribute == name:
                    return True
                case _:
                    pass
    return False


def is_generator(node: FunctionNode) -> bool:
    """Whether a function's own body yields."""
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(part))
    return False


def is_property(node: FunctionNode) -> bool:
    """Whether a decorator makes the function a property (`cached_property` and the like too)."""
    return any(_last_name(decorator).endswith("property") for decorator in node.decorator_list)


def parameter_names(node: FunctionNode) -> frozenset[str]:
    """The parameters that can be given by name or position; `*args` and `**kwargs` do not count."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return frozenset(argument.arg for argument in every)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the conditional blocks in it, not of what it defines."""
    for node in body:
        yield node
        match node:
            case ast.If(test=test) if _last_name(test) == "TYPE_CHECKING":
                yield from _statements(node.orelse)
            case ast.If() | ast.For() | ast.While():
                yield from _statements([*node.body, *node.orelse])
            case ast.With():
                yield from _statements(node.body)
            case ast.Try():
                handled = [part for handler in node.handlers for part in handler.body]
                yield from _statements([*node.body, *handled, *node.orelse, *node.finalbody])
            case _:
                pass


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last_name(function)
        case _:
            return ""
