"""The console command, and files of the user's that have the names of our packages."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchwords import COMMANDS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a common.py and a vit.py."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("common.py", "vit.py"):
        (folder / name).write_text("raise AssertionError('this is not of the program')\n")
    return folder


def run(cwd: Path, *command: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    """What pip makes of ``[project.scripts]``."""
    path = tmp_path / "bin" / "patchwords"
    path.parent.mkdir()
    path.write_text("import sys\nfrom patchwords import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    return str(path)


def test_the_script_is_installed():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.scripts]\npatchwords = "patchwords:main"\n' in text
    assert '"patchwords"' in next(line for line in text.splitlines() if line.startswith("packages = "))


def test_every_command_is_listed():
    for package, listed in COMMANDS.items():
        found = set()
        for path in (ROOT / package).glob("*.py"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in body):
                found.add(path.stem)
        assert found == set(listed)


def test_a_command_runs_whatever_the_working_directory_holds(script: str, folder: Path):
    done = run(folder, script, "vit", "predict", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: patchwords vit predict ")
    done = run(folder, script, "vit", "predict", "cifar10", "no.png")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: cannot read the picture no.png")


@pytest.mark.parametrize("package", ["vit", "seq2seq"])
def test_python_m_names_both_files(package: str, folder: Path):
    (folder / "vit.py").unlink()
    command = {"vit": "vit.predict", "seq2seq": "seq2seq.translate"}[package]
    done = run(folder, "-m", command, "--help")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {folder / 'common.py'} hides {ROOT / 'common' / '__init__.py'}, which")
    # A program that imports the package gets an exception instead.
    done = run(folder, "-c", f"try:\n import {package}\nexcept ImportError as error:\n print(error)")
    assert done.stdout.startswith(f"{folder / 'common.py'} hides ")


def test_help_imports_nothing(script: str, folder: Path):
    done = run(folder, "-X", "importtime", script, "--help")
    assert done.returncode == 0
    assert "  patchwords seq2seq translate  " in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "patchwords" in imported
    assert not imported & {"torch", "numpy", "tyro", "common", "vit", "seq2seq"}


@pytest.mark.parametrize(
    ("words", "named"), [([], "''"), (["vit"], "'vit'"), (["vit", "translate"], "'vit translate'")]
)
def test_an_unknown_command_is_one_line(words: list[str], named: str, script: str, folder: Path):
    done = run(folder, script, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: unknown command {named}; see patchwords --help\n"
