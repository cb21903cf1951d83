"""What a training run takes from its machine: the device, the precision and the threads."""

import platform
from dataclasses import replace

import torch

from common.kernels import processor
from common.kernels.precision import known_precision
from common.runtime.threads import use_threads
from common.training import distributed
from common.training.config import TrainingConfig
from common.training.run import say
from common.training.step import choose_device

PRECISIONS = ("fp32", "bf16", "fp16")


def for_this_machine(config: TrainingConfig) -> TrainingConfig:
    """The configuration with precision and threads decided, as config.json records them.

    Raises:
        UserError: the machine lacks the device, or the number of threads is below 1.
    """
    device = choose_device(config.device)
    return replace(config, precision=decided(config.precision, device), threads=use_threads(config.threads))


def announce(config: TrainingConfig) -> None:
    """Logs what ``for_this_machine`` decided, and warns of a precision that is slow here."""
    device = choose_device(config.device)
    if device.type == "cpu" and config.precision in ("bf16", "fp16") and not processor.bf16_pays():
        say(
            f"warning: precision={config.precision} is slow on this processor, which computes a layer in bf16 at "
            f"{processor.bf16_gain():.2f} times the speed of fp32; use --precision auto"
        )
    say(f"{device.type}, {config.threads} thread{'' if config.threads == 1 else 's'}, {config.precision}")


def decided(precision: str, device: torch.device) -> str:
    """The precision itself, or for ``auto`` the one in which this device trains fastest: bf16, fp16 or fp32.

    Several processes take the main one's. On a GPU with TF32, ``auto`` lets the float32 products outside autocast use
    it as well.
    """
    if precision != "auto":
        return precision
    distributed.start(device)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        torch.set_float32_matmul_precision("high")
    return PRECISIONS[int(distributed.from_main(PRECISIONS.index(_fastest(device))))]


def _fastest(device: torch.device) -> str:
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"  # with tensor cores
    return "bf16" if device.type == "cpu" and processor.bf16_pays() else "fp32"


def inference_precision(name: str, device: torch.device, rows: int = processor.FEW_ROWS) -> str:
    """The precision of a command that answers: ``known_precision`` on a CPU, whose slow choices it warns of.

    Args:
        name: as on the command line.
        device: where the model is.
        rows: of x in most products.
    """
    if device.type != "cpu":
        return "fp32" if name == "auto" else name
    precision = known_precision(name, rows)
    if precision == "bf16" and processor.bf16_gain(rows) < 1:
        say(
            f"warning: precision=bf16 is slow on this processor, which computes a layer at "
            f"{processor.bf16_gain(rows):.2f} times the speed of fp32; use --precision auto"
        )
    if precision == "int8" and not processor.int8_sums_are_exact():
        say("warning: precision=int8 is slow on this processor, which lacks VNNI; use --precision auto")
    return precision


def about() -> dict[str, str]:
    """The machine, for config.json."""
    return {"torch": torch.__version__, "machine": platform.machine(), "processor": processor.name()}
