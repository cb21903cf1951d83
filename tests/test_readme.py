"""The README keeps its word: its example runs, its tree is the tree, its commands exist."""

import re
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


def test_the_tree_names_every_file():
    """Every Python file of the packages has its line in the tree, and every line its file."""
    (tree,) = re.findall(r"```\n(common/.*?)```", README, flags=re.DOTALL)
    named, folder = set(), ""
    for line in tree.splitlines():
        name = line.split()[0]
        if name.endswith("/"):
            folder = name
        elif name.endswith(".py"):
            named.add(folder + name if line.startswith(" ") else name)
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in ("common", "common/training", "vit", "seq2seq", "benchmarks")
        for path in (ROOT / folder).glob("*.py")
        if path.name != "__init__.py"
    } | {"train_cifar.py"}
    assert named == there


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_pictures_of_the_readme_are_in_the_repository():
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        listed = subprocess.run(["git", "ls-files", picture], capture_output=True, text=True, cwd=ROOT, check=True)
        assert listed.stdout.strip() == picture
