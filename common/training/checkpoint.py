"""The two files of a run: the resume state and the weights. Both are written beside and renamed, and loading either
never executes code."""

import json
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from common.errors import UserError, one_line
from common.training.checks import check_tensors, digest
from common.training.finite import check_finite_weights, json_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Model = TypeVar("Model", bound=nn.Module)
FORMAT = 1
_METADATA_KEY, _DIGEST_KEY = "patchwords", "sha256"
BEST = "best.safetensors"
"""A run's best weights, in its folder."""


PART = ".*.part"
"""What a process that was killed while it wrote may leave behind, as a glob pattern."""


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the name when all is on the disk: the name always holds a whole file.

    A link stays, and what it leads to is replaced; a pipe or a device is written into.
    """
    path = Path(os.path.realpath(path))
    if _is_special(path):
        with open(path, "wb") as file:
            yield file
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch wraps what the disk says
        if not isinstance(cause, OSError):
            raise
        reason = f"cannot write {path} ({cause.strerror}); what was saved before is intact"
        raise UserError(f"{reason}; make room, or choose another place") from None
    finally:
        with suppress(OSError):
            beside.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all. Raises ValueError where the place cannot be written, or is full."""
    with _beside(path) as file:
        file.write(content)


def check_place(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raises ValueError where no file can be written at path, or where one of the inputs lies (or may lie, if that is a
    folder): to be asked before the work that it shall hold."""
    asked, path = path, Path(os.path.realpath(path))
    if path.exists() and any(path.is_relative_to(os.path.realpath(one)) for one in inputs):
        raise UserError(f"cannot write {asked}, for it is read too; choose another place")
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise UserError(f"cannot write {asked}, for it may not be written to; choose another place")
        return
    folder = path.parent
    if not folder.is_dir():
        raise UserError(
            f"cannot write {asked}, for there is no folder {asked.parent}; make it, or choose another place"
        )
    if path.is_dir() or not os.access(folder, os.W_OK):
        reason = "it is a folder" if path.is_dir() else f"{folder} may not be written to"
        raise UserError(f"cannot write {asked}, for {reason}; choose another place")


def _is_special(path: Path) -> bool:
    """A pipe or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_json(path: Path, values: Any) -> None:
    """Writes a value as indented JSON; half a letter, of a file's name that is no UTF-8, is escaped.

    Raises:
        ValueError: the place cannot be written, or a number is not finite.
    """
    text = json_text(values, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode(errors="backslashreplace"))


def write_png(path: Path, figure: "Figure") -> None:
    """Draws a matplotlib figure into a PNG file."""
    with _beside(path) as file:
        figure.savefig(file, format="png", dpi=110)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes a resume state, plain data and tensors only, whole or not at all. Raises ValueError as above."""
    with _beside(path) as file:
        torch.save({"format": FORMAT, **state}, file)


def load_state(path: Path) -> dict[str, Any]:
    """Reads a resume state on the CPU. Raises ValueError where it is not one, or of another format."""
    if not path.is_file():
        raise UserError(f"no resume state at {path}; start the run without --resume")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about pickles that are not its own
            with zipfile.ZipFile(path) as archive:  # torch does not compare the archive's checksums
                if name := archive.testzip():
                    raise ValueError(f"the checksum of {name} differs")
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler may raise anything on arbitrary bytes
        # What torch says of a pickle with other objects is how to run it all the same.
        reason = "it holds more than tensors" if isinstance(error, UnpicklingError) else _first_line(error)
        raise UserError(f"{path} is not a resume state of this program, or is damaged ({reason})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise UserError(f"{path} has format {found}, this program reads format {FORMAT}; start the run anew")
    return state


def unique_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with each tied tensor under its first name only."""
    seen: set[int] = set()
    unique = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            unique[name] = value.detach()
    return unique


def save_weights(path: Path, state: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Writes weights and what is needed to use them (a JSON value: kind, config, classes or tokenizer, ...)."""
    text = json_text({"format": FORMAT, **description}, ensure_ascii=False)
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    metadata = {_METADATA_KEY: text, "format": "pt", _DIGEST_KEY: digest(tensors, text)}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def read_weights(
    path: Path, kind: str | None = None, shipped: Path | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads a weights file: tensors by name, and the description.

    Args:
        path: the file, the folder of its run, or the name of one in ``shipped``, the folder of weights that came with
            the program.
        kind: of model that is wanted.
        shipped: see path.

    Raises:
        ValueError: no file there, not a weights file of this program, of another format or another kind; a weight is
            not finite.
    """
    names = {} if shipped is None else {file.stem: file for file in sorted(shipped.glob("*.safetensors"))}
    if not path.is_file():  # a folder of that name hides nothing
        path = names.get(str(path), path / BEST if (path / BEST).is_file() else path)
    if not path.is_file():
        more = f", or name what comes with this program: {', '.join(names)}" if names else ""
        raise UserError(f"no weights file at {path}; a run writes best.safetensors into its folder{more}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, OSError, AttributeError) as error:  # AttributeError: a type torch lacks
        raise UserError(f"{path} is not a safetensors file, or is damaged ({_first_line(error)})") from None
    if _METADATA_KEY not in metadata:
        raise UserError(f"{path} has no description of this program; give the best.safetensors of a run")
    if _DIGEST_KEY in metadata and metadata[_DIGEST_KEY] != digest(tensors, metadata[_METADATA_KEY]):
        raise UserError(f"{path} is damaged: its contents do not have the SHA-256 that it names; copy it again")
    try:
        description = json.loads(metadata[_METADATA_KEY])
    except (ValueError, RecursionError):
        description = None
    if not isinstance(description, dict):
        raise UserError(f"{path} is damaged: its description is no JSON object; give the best.safetensors of a run")
    if description.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {one_line(str(description.get('format')))[:60]}, this program reads format {FORMAT}"
        )
    if kind is not None and description.get("kind") != kind:
        raise UserError(f"{path} holds a {description.get('kind')} model, this command takes a {kind} model")
    check_finite_weights(tensors, str(path))
    return tensors, description


class _Uninitialised(TorchFunctionMode):
    """Leaves out torch.nn.init, which on the meta device imports torch's compiler: a second, and nothing to fill."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **kwargs)


def built_for(build: Callable[[], Model], tensors: Mapping[str, Tensor], origin: str) -> Model:
    """The model that ``build`` makes, if the tensors are its own: it is built without memory for its weights first.

    Raises:
        UserError: no model can be built so, or a tensor is not the model's.
    """
    try:
        with torch.device("meta"), _Uninitialised():
            expected = unique_state(build())
    except (RuntimeError, OverflowError, TypeError) as error:
        reason = _first_line(error)
        raise UserError(f"{origin}: no model can be built from its config ({reason}); the file is damaged") from None
    check_tensors(expected, tensors, origin)
    return build()


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], origin: str = "the weights") -> None:
    """Copies tensors into the model, strictly. Raises ValueError naming the first name or shape that differs."""
    expected = unique_state(model)
    check_tensors(expected, tensors, origin)
    with torch.no_grad():
        for name, value in expected.items():
            value.copy_(tensors[name])


def first_difference(saved: Any, asked: Any, name: str = "") -> str | None:
    """The first place where two JSON-like values differ, as "name: saved X, asked Y"; None where they are equal."""
    if isinstance(saved, Mapping) and isinstance(asked, Mapping):
        for key in [*saved, *(key for key in asked if key not in saved)]:
            inner = f"{name}.{key}" if name else str(key)
            if difference := first_difference(saved.get(key, "nothing"), asked.get(key, "nothing"), inner):
                return difference
        return None
    if isinstance(saved, list | tuple) and isinstance(asked, list | tuple):
        saved, asked = list(saved), list(asked)
    if saved == asked:
        return None
    texts = str(saved), str(asked)
    same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    return f"{name}: saved {_short(texts[0], same)}, asked {_short(texts[1], same)}"


def _short(text: str, same: int) -> str:
    """At most some 60 letters, of a long text those where it differs from another behind ``same`` letters."""
    if len(text) <= 60:
        return text
    first = max(min(same - 20, len(text) - 57), 0)
    return ("..." if first else "") + text[first : first + 57] + ("..." if first + 57 < len(text) else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
