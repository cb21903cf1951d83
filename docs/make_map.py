"""Writes docs/map.md, one line for each Python file, from the first lines of their docstrings.

python docs/make_map.py
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("common", "vit", "seq2seq", "patchwords", "benchmarks")
HEAD = """# Map

Every Python file and the first line of its docstring. Written by `python docs/make_map.py`; a test fails if a file is
missing here.
"""


def summary(path: Path) -> str:
    """The first line of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")


def folders() -> list[Path]:
    """The folders of the packages that hold Python files."""
    found = {file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    return sorted(found, key=lambda folder: (PACKAGES.index(folder.relative_to(ROOT).parts[0]), folder))


def markdown() -> str:
    """The whole map."""
    parts = [HEAD]
    for folder in folders():
        files = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
        package = summary(folder / "__init__.py")
        parts.append(f"\n## {folder.relative_to(ROOT).as_posix()}/\n" + (f"\n{package}.\n" if package else ""))
        if files:
            parts.append("\n| file | what |\n|---|---|\n")
            parts += [f"| `{file.name}` | {summary(file)} |\n" for file in files]
    return "".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "map.md").write_text(markdown(), encoding="utf-8")
