"""How a run is trained; every field is an option of both commands."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff

from common.errors import UserError


@dataclass(frozen=True)
class TrainingConfig:
    """Options of the training loop.

    Raises:
        ValueError: a value out of its range, naming the value.
    """

    epochs: int = 10
    """Passes over the training data; the schedule is laid over all of them."""
    minutes: float | None = None
    """Lay the schedule over this many minutes instead of epochs; the speed is measured in the first steps."""
    max_steps: int | None = None
    """Stop after this many steps in all and leave the schedule as it is; --resume goes on."""
    learning_rate: float = 1e-3
    """The peak, after warm-up."""
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = "cosine"
    """How the learning rate falls after warm-up (inverse_sqrt: Vaswani et al. 2017, 5.3)."""
    warmup: float = 0.05
    """Linear warm-up: a share of all steps if below 1, else a number of steps."""
    optimizer: str = "adamw"
    """A name that timm.optim knows: adamw, adam, muon, lion, ..."""
    betas: tuple[float, float] | None = None
    """The optimizer's own where not given."""
    weight_decay: float = 0.05
    """On matrices; biases, norms, positions and tokens are left out."""
    layer_decay: float = 1.0
    """Share of the learning rate that each layer leaves to the one below it, for fine-tuning; 1: all alike."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient; 0 switches it off."""
    accumulate: int = 1
    """Cut each batch into this many parts that fit the memory; the result is the same."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, warmed up, validated beside the raw ones; 0: none."""
    average_last: int = 0
    """Validate the mean of the weights at this many last evaluations beside the raw ones; 0: none."""
    evaluate_every: int = 1
    """Epochs between evaluations on the validation split."""
    patience: int | None = None
    """Stop after this many evaluations without a better one."""
    save_minutes: float = 10.0
    """Save the resume state at least this often, besides at every evaluation."""
    seed: int = 0
    """Of initial weights, sample order, augmentation and dropout."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """Of the matrix products (autocast); the weights stay fp32. auto: half precision if this processor or GPU is
    faster in it; the run folder records the choice and --resume keeps it."""
    threads: int | None = None
    """CPU threads; default: OMP_NUM_THREADS, else the cores that are free for this process."""
    compile: Annotated[bool, FlagCreatePairsOff] = False
    """Compile the model with torch.compile."""
    workers: int = 0
    """Processes that prepare batches ahead."""
    shard: Annotated[bool, FlagCreatePairsOff] = False
    """Cut parameters, gradients and optimizer state over the processes of torchrun (FSDP)."""
    tensorboard: Annotated[bool, FlagCreatePairsOff] = False
    """Write the figures for TensorBoard too, into the run folder."""
    dry_run: Annotated[bool, FlagCreatePairsOff] = False
    """Do two steps (the first to warm up) and one evaluation, say what the whole run takes, leave no file but the
    pictures decoded for later runs."""

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "evaluate_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("minutes", "max_steps", "patience"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"{name}={value} must be above 0")
        for name in ("learning_rate", "weight_decay", "clip_norm", "warmup", "average_last", "workers", "save_minutes"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name}={getattr(self, name)} must be 0 or more")
        if self.threads is not None and self.threads < 1:
            raise UserError(f"threads={self.threads} must be at least 1")
        if self.betas is not None and not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise UserError(f"betas={self.betas} must lie in [0, 1)")
        if not 0.0 < self.layer_decay <= 1.0:
            raise UserError(f"layer_decay={self.layer_decay} must lie in (0, 1]")
        if not 0.0 <= self.ema < 1.0:
            raise UserError(f"ema={self.ema} must lie in [0, 1)")
        if self.shard and self.ema:
            raise UserError(f"shard and ema={self.ema} do not go together; use --average-last")
        if self.shard and self.precision == "fp16":
            raise UserError("shard and precision=fp16 do not go together; use --precision bf16")


# What may differ between a run and its continuation: the rest decides the result.
FREE_ON_RESUME = (
    "max_steps",
    "save_minutes",
    "device",
    "threads",
    "workers",
    "compile",
    "accumulate",
    "shard",
    "tensorboard",
    "dry_run",
)
