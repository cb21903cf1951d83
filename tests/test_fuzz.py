"""Hostile files, lines and options: whatever they hold, the program works or ends with one line (UserError).

Seeded, a few seconds. PATCHWORDS_FUZZ=1000 tries that many of each kind, which takes minutes.
"""

import io
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from common import UserError
from common.training.checkpoint import load_state, save_state
from common.training.cli import parse_options
from common.training.run import STATE
from seq2seq import train as seq2seq_train
from seq2seq.decoding import translate
from seq2seq.weights import SHIPPED as TRANSLATORS
from seq2seq.weights import load_seq2seq
from tests.training.helpers import fit, settings
from vit import train as vit_train
from vit.pictures import read_picture
from vit.weights import SHIPPED as CLASSIFIERS
from vit.weights import load_vit

CASES = int(os.environ.get("PATCHWORDS_FUZZ", "40"))
NUMBERS = (-1, 0, 3, 10**9, 10**30, 0.5, float("inf"), float("nan"))
VALUES = (None, True, *NUMBERS, "", "x", "x" * 10**4, [], [1], ["a"] * 7, {}, {"a": 1})
LETTERS = "aaaaaaaaß \t\0\x1b\u200d\u202e\u0301\ufeff漢🙂\ud800\u2028"
OPTIONS = (
    *("data", "out", "size", "init", "preset", "epochs", "minutes", "learning-rate", "warmup", "betas", "precision"),
    *("batch-size", "image-size", "longest", "threads", "workers", "resume", "overwrite", "seed", "no-such-option"),
)
WORDS = ("0", "-1", "1", "nan", "inf", "1e400", "9" * 20, "x", "", "--", "digits", "toy", "é", "../..", "1 2", "None")


def works_or_one_line(call: Callable[[], Any]) -> bool:
    """Whether a call worked; any exception other than a UserError of one line fails the test."""
    try:
        call()
    except UserError as error:
        message = str(error)
    else:
        return True
    assert message.strip()
    assert len(message.splitlines()) == 1
    assert "weights_only" not in message
    return False


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside nested dictionaries and lists."""
    found = []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found += [(value, key), *places(one)]
    return found


def changed(value: Any, rng: random.Random) -> None:
    """Deletes or replaces one thing inside a nested value."""
    container, key = rng.choice(places(value))
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(VALUES)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A file cut off, with a byte changed, or with bytes inserted."""
    at = rng.choice((rng.randrange(len(content)), rng.randrange(min(len(content), 2000))))
    ways = content[:at], content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    return rng.choice((*ways, content[:at] + rng.randbytes(rng.randrange(1, 99)) + content[at:]))


def with_description(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A safetensors file with a changed description, without the digest that would give it away."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    description = json.loads(header["__metadata__"]["patchwords"])
    change(description)
    header["__metadata__"] = {"patchwords": json.dumps(description), "format": "pt"}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


@pytest.mark.parametrize(
    ("shipped", "load"),
    [(CLASSIFIERS / "cifar10.safetensors", load_vit), (TRANSLATORS / "de-en.safetensors", load_seq2seq)],
    ids=["vit", "seq2seq"],
)
def test_weights_files(shipped: Path, load: Callable[[Path], Any], tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "weights.safetensors"
    content = shipped.read_bytes()
    assert works_or_one_line(lambda: load(shipped))
    for i in range(CASES):
        change = with_description(content, lambda d: changed(d, rng)) if i % 2 else damaged(content, rng)
        path.write_bytes(change)
        works_or_one_line(lambda: load(path))


@pytest.mark.parametrize("modality", ["pictures", "sentences"])
def test_resume_states(modality: str, tmp_path: Path) -> None:
    rng, out = random.Random(1), tmp_path / "run"
    fit(modality, out, settings(epochs=1, max_steps=1))
    content = (out / STATE).read_bytes()

    def resume() -> None:
        fit(modality, out, settings(epochs=1, max_steps=1), resume=True)

    for i in range(CASES // 2):
        (out / STATE).write_bytes(content)
        if i % 2:
            state = load_state(out / STATE)
            changed(state, rng)
            save_state(out / STATE, state)
        else:
            (out / STATE).write_bytes(damaged(content, rng))
        works_or_one_line(resume)


def test_images(tmp_path: Path) -> None:
    rng, path = random.Random(2), tmp_path / "image"
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    modes = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "HSV", "YCbCr")
    formats = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
    good = 0
    for i in range(3 * CASES):
        file = io.BytesIO()
        image = Image.fromarray(pixels)
        mode, kind = rng.choice(modes), rng.choice(formats)
        try:
            image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
            image.save(file, kind)
        except (OSError, ValueError, KeyError):  # this format has no such mode
            continue
        path.write_bytes(damaged(file.getvalue(), rng) if i % 2 else file.getvalue())
        if works_or_one_line(lambda: read_picture(path, (3, 2))):
            assert read_picture(path, (3, 2)).shape == (3, 2, 3)
            good += 1
    assert good > CASES // 2


def test_lines_of_text() -> None:
    rng = random.Random(3)
    model, source, target, _ = load_seq2seq(Path("de-en"))
    for _ in range(CASES // 4):
        line = "".join(rng.choices(LETTERS, k=rng.randrange(40)))
        lines = [line, "ein hund"]

        def call(lines: list[str] = lines) -> None:
            assert len(translate(model, lines, source, target)) == 2

        works_or_one_line(call)


@pytest.mark.parametrize("train", [vit_train, seq2seq_train], ids=["vit", "seq2seq"])
def test_options(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(4)
    for _ in range(CASES):
        line = [word for name in rng.sample(OPTIONS, 3) for word in (f"--{name}", *rng.choice(WORDS).split(" "))]

        def parse(line: list[str] = line) -> None:
            parse_options(train.Options, train.PRESETS, train.BY_DATA, line, train.by_init)

        works_or_one_line(parse)


def test_a_claim_of_a_thousand_million_layers_builds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "layers.safetensors"

    def claim(description: dict[str, Any]) -> None:
        description["config"]["n_layers"] = 10**9

    path.write_bytes(with_description((CLASSIFIERS / "cifar10.safetensors").read_bytes(), claim))
    with pytest.raises(UserError, match=r"layers\.safetensors: n_layers=1000000000, but it holds \d+ layers"):
        load_vit(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("std", [0.2, 0.0, 0.2], r"std=\[0\.2, 0\.0, 0\.2\] must be above 0"),
        ("mean", [0.5, 0.5], r"mean=\[0\.5, 0\.5\] must be 3 finite numbers"),
        ("classes", ["a", "b"], "classes: expected 10 different names, found 2"),
        ("classes", [*"abcdefghi", 7], r"classes\[9\]: expected str, found 7"),
        ("config", 5, "config: expected ViTConfig, found 5"),
    ],
)
def test_an_error_names_file_and_field(field: str, value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    content = (CLASSIFIERS / "cifar10.safetensors").read_bytes()
    path.write_bytes(with_description(content, lambda description: description.update({field: value})))
    with pytest.raises(UserError, match=rf"w\.safetensors.*{message}"):
        load_vit(path)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    fit("pictures", tmp_path, settings(epochs=1))
    path = tmp_path / "best.safetensors"
    assert works_or_one_line(lambda: load_vit(path))
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"best\.safetensors is damaged: its contents do not have the SHA-256"):
        load_vit(path)


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source, path = CLASSIFIERS / "cifar10.safetensors", tmp_path / "whole.safetensors"
    content = source.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    tensors = load_file(source)
    tensors["classifier.bias"] = torch.zeros(10, dtype=torch.int32)
    save_file(tensors, path, {"patchwords": json.loads(content[8 : 8 + length])["__metadata__"]["patchwords"]})
    with pytest.raises(UserError, match=r"classifier\.bias is torch\.int32 in .*whole\.safetensors"):
        load_vit(path)
