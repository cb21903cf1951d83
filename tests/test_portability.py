"""Python 3.10, Windows and macOS: nothing newer, and no call without a guard that only Linux has."""

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest
import torch

from common.training.run import STATE
from tests.training.helpers import build
from vit.cache import names_below

ROOT = Path(__file__).resolve().parent.parent
FILES = [path for room in ("common", "patchwords", "vit", "seq2seq") for path in sorted((ROOT / room).rglob("*.py"))]

NEWER = {  # names and keywords that Python 3.10 lacks
    "tomllib", "UTC", "ExceptionGroup", "BaseExceptionGroup", "StrEnum", "Self", "LiteralString", "Never", "override",
    "assert_never", "assert_type", "NotRequired", "Required", "Unpack", "TypeVarTuple", "dataclass_transform",
    "batched", "file_digest", "chdir", "add_note", "getencoding", "TypeIs", "ReadOnly", "process_cpu_count",
    "onexc", "delete_on_close", "case_sensitive", "walk_up",
}  # fmt: skip
LINUX_ONLY = """
import multiprocessing, os, signal, sys

for name in ("resource", "fcntl", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "fork", "forkpty", "getuid", "geteuid", "getloadavg", "sysconf", "killpg", "getpgid",
             "statvfs", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGHUP", "SIGPIPE", "SIGUSR1", "SIGALRM"):
    delattr(signal, name)
multiprocessing.set_start_method("spawn")
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_newer_than_python_3_10_and_text_is_utf_8(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))):
        line = getattr(node, "lineno", None)
        names = {getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "module", None)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keywords = {keyword.arg for keyword in node.keywords}
            names |= keywords
            assert called != "catch_warnings" or "action" not in keywords, line
            modes = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            text = called in ("read_text", "write_text") or (
                isinstance(node.func, ast.Name) and called == "open" and not any("b" in mode for mode in modes)
            )
            assert not text or "encoding" in keywords, line
        assert not names & NEWER, line


def without_linux(tmp_path: Path, *command: str) -> subprocess.CompletedProcess:
    """Runs Python, and the processes that it starts, without what only Linux has; workers are spawned."""
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(LINUX_ONLY)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes away what Linux has")
def test_the_digits_recipe_runs_without_what_only_linux_has(tmp_path: Path) -> None:
    tiny = ["--size", "micro", "--image-size", "8", "8", "--batch-size", "7", "--max-steps", "3", "--device", "cpu"]
    done = without_linux(tmp_path, "-m", "vit.train", "--data", "digits", *tiny, "--workers", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / STATE).exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes away what Linux has")
def test_the_translator_runs_without_what_only_linux_has(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ein mann .\n", encoding="utf-8")
    done = without_linux(tmp_path, "-m", "seq2seq.translate", "de-en", "text", "--beam", "1")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr


@pytest.mark.parametrize("modality", ["pictures", "sentences"])
def test_a_spawned_worker_makes_the_same_batches(modality: str) -> None:
    task = build(modality)[1]
    sent = pickle.loads(pickle.dumps(task))
    for ours, theirs in zip(task.batch(1, 0, 1), sent.batch(1, 0, 1), strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


def test_files_have_the_same_names_on_windows() -> None:
    folder = PureWindowsPath("C:\\data")
    paths = [folder / "train\\cat\\a.png", folder / "b.png"]
    assert names_below(folder, paths) == ["train/cat/a.png", "b.png"]  # pyright: ignore[reportArgumentType]
