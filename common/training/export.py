"""What exports to other programs share: a folder that holds all or nothing, and graphs in ONNX files."""

import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common.errors import UserError

OPSET = 18


@contextmanager
def new_folder(out: Path, files: Collection[str], *, overwrite: bool) -> Iterator[Path]:
    """An empty folder to write into; it takes the name ``out`` when all is written, so that the name holds all or none.

    Args:
        out: where the folder shall be.
        files: all that an export may write: a folder with anything else in it is no export and is never replaced.
        overwrite: replace an export.

    Raises:
        ValueError: the name is taken, by something that ``overwrite`` does not replace, or cannot be written.
    """
    out = out.absolute()
    beside, before = (out.with_name(f".{out.name}.{os.getpid()}.{kind}") for kind in ("part", "old"))
    try:
        if out.exists():
            _may_replace(out, files, overwrite)
        out.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        if out.exists():
            out.rename(before)
        beside.rename(out)
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write {out} ({error.strerror}); make room, or name another folder") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _may_replace(out: Path, files: Collection[str], overwrite: bool) -> None:
    if not out.is_dir():
        raise UserError(f"{out} is a file; name a folder")
    names = {path.name for path in out.iterdir()}
    if names and not overwrite:
        raise UserError(f"{out} is there already; add --overwrite, or name another folder")
    if others := sorted(names - set(files)):
        raise UserError(f"{out} holds {others[0]}, which is no part of an export; name another folder")


def require_onnx(option: str = "onnx") -> None:
    """Raises ValueError where the packages that write ONNX files are not installed."""
    try:
        import onnx  # noqa: F401  # pyright: ignore[reportMissingImports]
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"--to {option} needs {error.name}, the extra onnx: pip install 'patchwords[onnx]'") from None


def write_graph(
    graph: nn.Module, path: Path, inputs: tuple, axes: tuple[Any, ...], names: Sequence[str], outputs: Sequence[str]
) -> None:
    """Writes a module as one ONNX file.

    Args:
        graph: a module of tensors to tensors.
        path: of the file.
        inputs: examples; no size of theirs that may vary is 0 or 1, which an export would take for a constant.
        axes: of each input, the axes that may vary, as ``torch.export`` wants them.
        names: of the inputs.
        outputs: their names.
    """
    with warnings.catch_warnings():
        # Inputs that share an axis: it is named once, which is what is wanted.
        warnings.filterwarnings("ignore", message="# The axis name: .* will not be used, since it shares")
        torch.onnx.export(
            graph.eval(),
            inputs,
            path,
            input_names=names,
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            dynamic_shapes=axes,
            verbose=False,
        )
