"""The layers of the package: a file imports its own layer and those below, in functions too, and none in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import diffclip

PACKAGE = Path(diffclip.__file__).parent
LAYERS = (
    *(
        "version",
        "threads",
        "names",
        "errors",
        "files",
        "plugins",
        "attention",
        "config",
        "preprocess",
        "tokenizer",
    ),
    *("towers", "initialisation", "model", "tensors", "published", "weights", "sources", "data", "scenes"),
    *("maps", "evaluation", "benchmarking", "training", "integrations", "study", "report", "demo", "vlm"),
    *("web", "cli", "__main__"),
)


def imports_of(file: Path) -> set[str]:
    """List the modules of the package that a file imports, also inside functions and for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("diffclip.") and is_module(name)}


def is_module(name: str) -> bool:
    path = PACKAGE.parent / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


IMPORTS = {module_of(file): imports_of(file) for file in sorted(PACKAGE.rglob("*.py"))}


def layer(module: str) -> int:
    return LAYERS.index(module.split(".")[1]) if "." in module else 0


def test_imports_point_one_way() -> None:
    wrong = [
        f"{a} → {b}"
        for a, found in IMPORTS.items()
        for b in sorted(found)
        if layer(b) > layer(a) and "." in a
    ]
    assert not wrong


def test_no_files_import_each_other() -> None:
    graph = {a: {b for b in found if b != a and not a.startswith(f"{b}.")} for a, found in IMPORTS.items()}
    TopologicalSorter(graph).prepare()
