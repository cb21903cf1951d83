"""The lines of an export's README.txt, run as its reader would."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def run_usage(folder: Path, **inputs: Sequence[str]) -> dict[str, Any]:
    """Runs the Python of README.txt in its folder, with these lists in place of its own; returns its variables.

    The lines must do without this package.
    """
    text = (folder / "README.txt").read_text(encoding="utf-8")
    assert "patchwords" not in text
    lines = re.findall(r"^ {4}(.*)$|^$", text, flags=re.MULTILINE)
    program = "\n".join(line for line in lines if not line.startswith("pip install"))
    for name, values in inputs.items():
        given = f"{name} = {list(values)!r}"
        program, replaced = re.subn(rf"^{name} = .*$", lambda _, given=given: given, program, flags=re.MULTILINE)
        assert replaced == 1
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(program, "README.txt", "exec"), names)  # our own file
    return names
