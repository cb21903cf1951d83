"""What the commands share: options with presets, one-line complaints about them, JSON."""

import codecs
import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from common.config import from_dict
from common.errors import UserError
from common.kernels.precision import OLDER
from common.training import distributed, run_lock
from common.training.command import run_command
from common.training.finite import json_text
from common.training.run import read_config, run_folder

Options = TypeVar("Options")


def data_folder() -> Path:
    """Where data sets lie or are downloaded to: $PATCHWORDS_DATA, or data/ where that is not set."""
    return Path(os.environ.get("PATCHWORDS_DATA", "data")).expanduser()


def print_json(value: Any) -> None:
    """A line of JSON on standard output, which is UTF-8 (RFC 8259, 8.1): where the output is not, letters are escaped.
    So is half a letter, of a file's name that is no UTF-8."""
    unicode = codecs.lookup(getattr(sys.stdout, "encoding", None) or "ascii").name == "utf-8"
    print(json_text(value, ensure_ascii=not unicode))


def parse_options(
    options: type[Options],
    presets: Mapping[str, Mapping[str, Any]],
    by_data: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
    by_init: Callable[[str], Mapping[str, Any]] | None = None,
) -> Options:
    """Reads the command line into a dataclass that has ``data``, ``preset``, ``resume``, ``out`` and ``training``.

    ``--data NAME``, ``--preset NAME`` and, where ``by_init`` tells how, ``--init WEIGHTS`` change defaults;
    ``--resume`` takes the options of the run in ``--out``, or where the data's name puts it, so that nothing has to be
    repeated. What is written on the line always wins.
    """
    arguments = _with_home(sys.argv[1:] if arguments is None else arguments)
    data, preset, out, init = (_value(arguments, name) for name in ("--data", "--preset", "--out", "--init"))
    default = options()
    if preset is not None and preset not in presets:
        raise UserError(f"unknown preset {preset!r}; choose one of {', '.join(presets)}")
    if "--resume" in arguments and (saved := _saved_options(default, out, data)):
        for name, asked in (("preset", preset), ("init", init)):
            if asked is not None and asked != saved.get(name):
                own = saved.get(name) or "it has none"
                raise UserError(f"{name}={asked} is not that of the run to resume ({own}); leave it out")
        default = apply(from_dict(options, saved), {"training": {"max_steps": None}})  # that was for the first part
    else:
        default = apply(default, by_data.get(data or "", {}))
        if preset is not None:
            default = apply(default, {**presets[preset], "preset": preset})
        if init is not None and by_init is not None:
            default = apply(default, by_init(init))
    return read_options(options, arguments, default=default)


def _saved_options(default: Any, out: str | None, data: str | None) -> dict[str, Any] | None:
    """Those of the run in ``out``, or where that is not given, of the one on the data that are asked for."""
    usual = default.data if isinstance(default.data, str) else default.data[0]
    return read_config(run_folder(None if out is None else Path(out), data or usual)).get("options")


def read_options(options: type[Options], arguments: Sequence[str] | None = None, **settings: Any) -> Options:
    """``tyro.cli`` whose complaints are one line. Raises ValueError where the command line is wrong."""
    arguments = _with_home(sys.argv[1:] if arguments is None else arguments)
    for i, (option, value) in enumerate(zip(["", *arguments], arguments, strict=False)):
        if option == "--precision":
            arguments[i] = OLDER.get(value, value)
    said = io.StringIO()
    config = (tyro.conf.OmitArgPrefixes,)
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(options, prog=program(), args=arguments, config=config, **settings)
    except SystemExit as ended:
        if not ended.code:
            raise  # --help
        raise UserError(_one_line(said.getvalue())) from None


def program() -> str:
    """How this command is called: ``python -m vit.predict``, ``train_cifar.py`` or ``patchwords vit predict``."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    if sys.argv[0].startswith("patchwords ") or module is None:
        return os.path.basename(sys.argv[0])
    return f"python -m {module.name}"


def _with_home(arguments: Sequence[str]) -> list[str]:
    """Arguments with ``~`` expanded where a path may begin; a shell leaves it in ``--out=~/x`` and in quotes."""
    parts = (re.fullmatch(r"(--[\w-]+=)?(.*)", argument, flags=re.DOTALL) for argument in arguments)
    return [(part[1] or "") + os.path.expanduser(part[2]) for part in parts if part]


def _one_line(box: str) -> str:
    """tyro's message in its box as one line: what is wrong, and the option that it thinks was meant."""
    paragraphs: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        text = line.strip("│╰╯─ ")
        if text.strip("-"):
            paragraphs[-1].append(text)
        else:  # a rule, of dashes where the terminal knows no other
            paragraphs.append([])
    meant = next((p[1].split()[0] for p in paragraphs if len(p) > 1 and p[0].startswith("Perhaps you meant")), None)
    said = " ".join(next(filter(None, paragraphs))).rstrip(".")
    said = re.sub(r"^Error parsing (?!--)[\w.-]+: ", "", said)  # what a dataclass says of its own values stands alone
    return said + (f"; did you mean {meant}?" if meant else "; see --help")


def training_command(
    options: type[Options],
    presets: Mapping[str, Mapping[str, Any]],
    by_data: Mapping[str, Mapping[str, Any]],
    run: Callable[[Options], None],
    by_init: Callable[[str], Mapping[str, Any]] | None = None,
) -> None:
    """A command that trains: reads its options, runs, and leaves the process group and the run folder."""

    def command() -> None:
        try:
            run(parse_options(options, presets, by_data, by_init=by_init))
        finally:
            run_lock.release()
        distributed.stop()

    batch = "--batch-tokens" if hasattr(options, "batch_tokens") else "--batch-size"
    run_command(command, f"use a smaller {batch}, or --accumulate N, which cuts each batch into N parts")


def apply(options: Options, changes: Mapping[str, Any]) -> Options:
    """A copy of a (nested) dataclass with some fields changed; a nested one takes a mapping."""
    values = {}
    for key, value in changes.items():
        old = getattr(options, key)
        values[key] = apply(old, value) if dataclasses.is_dataclass(old) and isinstance(value, Mapping) else value
    return dataclasses.replace(options, **values)  # pyright: ignore[reportArgumentType]


def _value(arguments: Sequence[str], option: str) -> str | None:
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(option + "="):
            return argument[len(option) + 1 :]
    return None
