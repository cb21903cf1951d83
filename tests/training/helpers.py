"""Tiny runs of both modalities, and processes that start in a moment (forked from one that has imported everything)."""

import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import timm.optim  # noqa: F401 (training needs it; here it is imported once for all processes)
import torch
from torch import Tensor, nn

from common import TransformerConfig
from common.training import TrainingConfig, evaluation, train
from common.training.checkpoint import load_state
from common.training.command import run_command
from common.training.run import STATE
from seq2seq.data import PairData
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.task import Translation
from seq2seq.tokenizer import Tokenizer
from vit.augment import AugmentConfig
from vit.data import PictureData, Pictures
from vit.model import ViT, ViTConfig
from vit.progressive import ProgressiveConfig
from vit.task import ImageClassification

MODALITIES = ("pictures", "sentences")
PAIRS = [
    ("ich mochte ein bier", "i want a beer"),
    ("ich mochte brot", "i want bread"),
    ("du siehst einen hund", "you see a dog"),
    ("wir sehen", "we see"),
    ("sie trinkt heute kein wasser", "she does not drink water today"),
    ("er schlaft", "he sleeps"),
    ("ich sehe zwei katzen und einen hund", "i see two cats and a dog"),
]


def picture_data(n: int = 19, n_valid: int = 5) -> PictureData:
    """Random pictures of 8 x 8 in three classes."""
    random = torch.Generator().manual_seed(1)

    def split(n: int) -> Pictures:
        images = torch.randint(0, 256, (n, 8, 8, 3), generator=random, dtype=torch.uint8)
        return Pictures(images, torch.arange(n) % 3)

    return PictureData("noise", split(n), split(n_valid), split(3), ("a", "b", "c"), (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


def pictures(
    dropout: float = 0.1,
    batch_size: int = 7,
    augment: bool = True,
    n: int = 19,
    progressive: ProgressiveConfig | None = None,
) -> tuple[nn.Module, ImageClassification]:
    """A ViT on noise: by default three batches an epoch, the last one smaller."""
    layers = TransformerConfig(d_model=12, n_heads=2, d_ff=20, dropout=dropout, drop_path=dropout)
    config = ViTConfig(n_classes=3, image_size=(8, 8), patch_size=(4, 4), n_layers=2, layers=layers)
    changes = AugmentConfig(crop=1, rotate=10.0, erase=0.3, mixup=0.4, cutmix=0.4, mix_probability=0.8)
    task = ImageClassification(
        picture_data(n),
        config,
        changes if augment else AugmentConfig(crop=0, flip=False),
        batch_size=batch_size,
        label_smoothing=0.1,
        progressive=progressive,
    )
    torch.manual_seed(3)
    return ViT(config), task


def sentences(dropout: float = 0.1, batch_tokens: int = 15, n: int = 7) -> tuple[nn.Module, Translation]:
    """A translator of a few sentences: by default four batches an epoch, of unequal numbers of tokens."""
    joint = Tokenizer.of_words(text for pair in PAIRS for text in pair)
    data = PairData("few", PAIRS[:n], PAIRS[:3], PAIRS[:2], joint, joint)
    layers = TransformerConfig(d_model=12, n_heads=2, d_ff=20, dropout=dropout)
    assert joint.start_id is not None
    assert joint.end_id is not None
    config = Seq2SeqConfig(
        source_vocabulary=len(joint),
        target_vocabulary=len(joint),
        start_id=joint.start_id,
        end_id=joint.end_id,
        n_encoder_layers=1,
        n_decoder_layers=1,
        layers=layers,
    )
    torch.manual_seed(3)
    return Seq2Seq(config), Translation(data, config, batch_tokens=batch_tokens, label_smoothing=0.1)


def build(modality: str, **options: Any) -> tuple[nn.Module, Any]:
    """A fresh model and its task."""
    return {"pictures": pictures, "sentences": sentences}[modality](**options)


def settings(**changes: Any) -> TrainingConfig:
    """Four epochs, warmed up over more than one, on the CPU."""
    return replace(TrainingConfig(epochs=4, learning_rate=0.01, warmup=5, device="cpu"), **changes)


def fit(
    modality: str, out: Path, config: TrainingConfig, resume: bool = False, **options: Any
) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Trains in a run folder; returns the weights at the end, and the figures."""
    model, task = build(modality, **options)
    out.mkdir(exist_ok=True)
    figures = train(model, task, config, out=out, resume=resume)
    return model.state_dict(), figures


def saved_model(out: Path) -> dict[str, Tensor]:
    """The weights of a resume state."""
    return load_state(out / STATE)["model"]


def draw_nothing(*_: object) -> None:
    """Takes the place of the drawing of curves."""


def assert_same_state(left: Any, right: Any, name: str = "state") -> None:
    """Two resume states are equal to the last bit, seconds aside."""
    assert type(left) is type(right), name
    if isinstance(left, Mapping):
        assert left.keys() == right.keys(), name
        for key in left:
            if "seconds" not in str(key):
                assert_same_state(left[key], right[key], f"{name}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), name
        for i, pair in enumerate(zip(left, right, strict=True)):
            assert_same_state(*pair, f"{name}[{i}]")
    elif isinstance(left, Tensor):
        assert torch.equal(left, right), f"{name} differs by {(left - right).abs().max()}"
    else:
        assert left == right, f"{name}: {left} is not {right}"


_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.training.helpers"])


def begin(
    function: Callable[..., Any], *arguments: Any, log: Path, environment: Mapping[str, str] | None = None
) -> ForkServerProcess:
    """Starts a function as a command in a process (and session) of its own; what it prints goes into the log."""
    process = _FORK.Process(target=_child, args=(function, arguments, str(log), dict(environment or {})))
    process.start()
    return process


def _child(function: Callable[..., Any], arguments: tuple[Any, ...], log: str, environment: dict[str, str]) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)  # of data workers, as on Linux before Python 3.14
    torch.set_num_threads(1)
    evaluation.draw_curves = draw_nothing

    def main() -> None:
        function(*arguments)

    run_command(main)


def end(process: ForkServerProcess, seconds: float = 60.0) -> int:
    """Waits for a process and returns its exit code; one that does not end is killed and fails the test."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"still running after {seconds} s")
    return process.exitcode


def begin_together(
    n: int, function: Callable[..., Any], *arguments: Any, log: Path, environment: Mapping[str, str] | None = None
) -> list[ForkServerProcess]:
    """Starts n processes with the environment that torchrun gives them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
    return [
        begin(
            function,
            *arguments,
            log=log,
            environment={**shared, "RANK": str(i), "LOCAL_RANK": str(i), **(environment or {})},
        )
        for i in range(n)
    ]


def processes_of(process: ForkServerProcess) -> list[str]:
    """The command lines of processes that are left in the session of a process that ``begin`` started."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()  # state, parent, group, session, ...
            if int(fields[3]) == process.pid and fields[0] != "Z":
                left.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass  # it ended meanwhile
    return left
