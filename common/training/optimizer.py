"""The optimizer (timm's) and the learning rate as a pure function of the step."""

import math
from typing import Any

import torch
from torch import nn

from common.errors import UserError
from common.training.config import TrainingConfig
from common.training.run import say

INTO_THE_GRADIENT = ("adam", "nadam", "radam", "adamax", "adagrad", "rmsprop")
"""Adaptive optimizers of timm whose weight decay is not decoupled from the step (Loshchilov and Hutter 2019)."""


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """An optimizer over the model's parameters, without weight decay on vectors and on what the model names itself.

    A model may have ``no_weight_decay() -> set of parameter names`` (positions, tokens), and must have timm's
    ``group_matcher`` where layers have learning rates of their own. Frozen parameters are left out.

    Raises:
        ValueError: timm knows no such optimizer or it cannot be made here, it has no betas and some are given, or the
            model does not say in which order its layers lie.
    """
    from timm.optim import create_optimizer_v2, list_optimizers  # takes seconds, and only training needs it

    if config.optimizer not in list_optimizers():
        raise UserError(f"unknown optimizer {config.optimizer!r}; choose one that timm.optim lists, such as adamw")
    if config.optimizer in INTO_THE_GRADIENT and config.weight_decay:
        say(
            f"{config.optimizer} adds weight_decay={config.weight_decay} x weights to the gradient, where its step "
            "sizes enlarge it; adamw shrinks the weights themselves, and --weight-decay 0 does neither"
        )
    options: dict[str, Any] = {} if config.betas is None else {"betas": config.betas}
    if config.optimizer in ("adam", "adamw"):
        options["fused"] = True  # one kernel for all parameters; the same numbers
    if config.optimizer in ("muon", "adamuon"):
        # Orthogonalised updates are for the matrices between hidden layers; AdamW takes embeddings and the classifier.
        outer = [name for name, _ in model.named_parameters() if not name.startswith(("encoder.", "decoder."))]
        options |= {"momentum": 0.95, "nesterov": True, "fallback_list": outer}
    if config.layer_decay != 1.0:
        if not hasattr(model, "group_matcher"):
            raise UserError(f"layer_decay={config.layer_decay} is for a ViT, whose layers lie in one row; leave it out")
        options["layer_decay"] = config.layer_decay
    try:
        made = create_optimizer_v2(
            model, opt=config.optimizer, lr=config.learning_rate, weight_decay=config.weight_decay, **options
        )
    except (AssertionError, ImportError, TypeError, RuntimeError) as error:  # what one of timm's needs and has not
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"optimizer {config.optimizer!r} cannot be made here ({reason}); choose another") from None
    if config.betas is not None and not any("betas" in group for group in made.param_groups):  # timm passes over them
        raise UserError(f"betas={config.betas} are nothing that {config.optimizer} has; leave them out")
    return made


def learning_rate(step: int, total: int, config: TrainingConfig) -> float:
    """The learning rate of step 0 <= step < total: linear warm-up to the peak, then down.

    Cosine ends just above 0 at the last step; inverse square root falls as 1 / sqrt(step) (Vaswani et al. 2017, 5.3).
    """
    warmup = config.warmup * total if config.warmup < 1 else config.warmup
    done = step + 1
    if done < warmup:
        return config.learning_rate * done / warmup
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "inverse_sqrt":
        return config.learning_rate * math.sqrt(max(warmup, 1.0) / done)
    progress = (done - warmup) / max(total - warmup + 1, 1.0)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets every group's rate, times the group's own ``lr_scale`` where it has one (layer-wise decay)."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
