"""How commands end: one line and an exit code for a signal, a lack of memory, a closed pipe and a mistake."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import seq2seq.train
import vit.train
from common.errors import UserError
from common.training.command import run_command
from vit.predict import print_bars

ROOT = Path(__file__).parents[2]


def ending(main: Callable[[], object], *how: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run_command(main, *how)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def interrupted_at_torch(folder: Path, *command: str) -> subprocess.CompletedProcess:
    """Runs Python with a torch that sends Ctrl-C where it is imported, and catches what exception comes of it."""
    (folder / "torch.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n"
        "except KeyboardInterrupt:\n    raise ImportError('as a library may say')\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["-m vit.train", "-mvit.predict", "-m seq2seq.translate de-en", "train_cifar.py"])
def test_ctrl_c_during_imports_is_one_line(command: str, tmp_path: Path) -> None:
    done = interrupted_at_torch(tmp_path, *command.split())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_ctrl_c_during_the_imports_of_the_console_command(tmp_path: Path) -> None:
    (tmp_path / "patchwords").write_text("from patchwords import main\nmain()\n")
    done = interrupted_at_torch(tmp_path, str(tmp_path / "patchwords"), "seq2seq", "evaluate")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_a_program_that_imports_the_package_keeps_its_own_ctrl_c(tmp_path: Path) -> None:
    done = interrupted_at_torch(tmp_path, "-c", "import vit")
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: as a library may say\n")


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "told"),
    [
        (lambda: torch.empty(10**14), "out of memory (tried to allocate 400000000000000 bytes); "),
        (lambda: np.empty(10**14), "out of memory (tried to allocate 728. TiB); "),
        (lambda: bytearray(10**15), "out of memory; "),
        (raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity")),
         "out of memory (tried to allocate 2.00 GiB); "),
        (raising(RuntimeError("[enforce fail at alloc_cpu.cpp:75] data. DefaultCPUAllocator: not enough memory: you "
                              "tried to allocate 37 bytes.")), "out of memory (tried to allocate 37 bytes); "),
        (raising(RuntimeError("MPS backend out of memory (MPS allocated: 5 GB). Tried to allocate 7.00 MB on private")),
         "out of memory (tried to allocate 7.00 MB); "),
        (raising(OSError(errno.ENOMEM, "Cannot allocate memory")), "out of memory; "),
    ],
)  # fmt: skip
def test_a_lack_of_memory_is_one_line(main, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(main, "use less") == 2
    assert capsys.readouterr().err == f"error: {told}use less\n"


@pytest.mark.parametrize(("module", "option"), [(vit.train, "--batch-size"), (seq2seq.train, "--batch-tokens")])
def test_training_names_the_option_that_takes_less_memory(module, option: str, monkeypatch, capsys) -> None:
    def run(_: object) -> None:
        torch.empty(10**14)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr("sys.argv", ["train"])
    with pytest.raises(SystemExit, match="2"):
        module.main()
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"; use a smaller {option}, or --accumulate N" in line


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        run_command(raising(RuntimeError("a bug")))


def test_a_name_with_a_line_end_stays_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(raising(UserError("no file a\nb\x1b[0m é中")), "") == 2
    assert capsys.readouterr().err == "error: no file a\\nb\\x1b[0m é中\n"


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(lambda: os.listdir(tmp_path / "none")) == 2
    told = f"error: cannot use {tmp_path / 'none'} (No such file or directory); check the file and its permissions\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    "main", [lambda: print("words"), lambda: print("words" * 99999, flush=True), lambda: print_bars([("cat", 0.7)])]
)
def test_a_closed_pipe_ends_a_command_silently(main, monkeypatch, capsys) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        assert ending(main) == 141
    assert capsys.readouterr().err == ""


WRITERS = {
    "a file": "from common.training.checkpoint import _beside\nwith _beside(folder / 'file') as file:\n    wait()",
    "an export": "from common.training.export import new_folder\nwith new_folder(folder / 'out', [], overwrite=False):"
    "\n    wait()",
    "a download": "import vit.cifar, torchvision.datasets as sets, torchvision.datasets.utils as utils\n"
    "utils.download_url = wait\nvit.cifar.read_cifar10(folder, 0, (32, 32), 0.1)",
    "decoded pictures": "import vit.cache\nvit.cache.decode_pictures = wait\n"
    "vit.cache.decoded(folder, [folder / 'a.png'], (7, 5), folder)",
}


@pytest.mark.parametrize(
    ("writer", "signal_name"), [*((writer, "SIGTERM") for writer in WRITERS), ("a file", "SIGHUP")]
)
def test_a_terminated_command_removes_its_temporary_files(writer: str, signal_name: str, tmp_path: Path) -> None:
    number = signal.Signals[signal_name]
    program = (
        "import sys, time\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\ndef wait(*_, **__):\n"
        "    print('writing', flush=True)\n    time.sleep(99)\ndef main():\n    "
        + WRITERS[writer].replace("\n", "\n    ")
        + "\nfrom common.training.command import run_command\nrun_command(main)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        assert process.stderr.read() == "stopped at once; what was saved before is intact\n"
        assert process.wait(timeout=20) == 128 + number
    assert [path for path in tmp_path.rglob("*") if path.is_file() or path.name.startswith(".")] == []
