"""The README keeps its word: its example runs, the map names every file, its pictures are there."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)  # our own file
    assert capsys.readouterr().out.strip() == "torch.Size([3, 10, 64]) torch.Size([3, 4, 10, 10])"
    assert names["weights"].shape == (3, 4, 10, 5)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_map_names_every_file():
    """``python docs/make_map.py`` writes it anew."""
    make_map = runpy.run_path(str(ROOT / "docs" / "make_map.py"))
    assert (ROOT / "docs" / "map.md").read_text(encoding="utf-8") == make_map["markdown"]()
    files = [file for folder in make_map["folders"]() for file in folder.glob("*.py") if file.name != "__init__.py"]
    assert [file for file in files if not make_map["summary"](file)] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_pictures_of_the_readme_are_in_the_repository():
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        listed = subprocess.run(["git", "ls-files", picture], capture_output=True, text=True, cwd=ROOT, check=True)
        assert listed.stdout.strip() == picture
