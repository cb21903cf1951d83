"""The one place where masks are made. A mask is bool and True means "may attend".

Shapes: B batch, Tq query length, Tk key length.
"""

import torch
from torch import Tensor


def visible_keys(
    key_mask: Tensor | None, causal: bool, q_len: int, k_len: int, device: torch.device | None = None
) -> Tensor | None:
    """Which keys each query may attend to.

    The *last* query is aligned with the last key, so that one call serves a whole pass (q_len = k_len) and a step
    through a cache (q_len < k_len); torch's own ``is_causal`` aligns the first ones and is wrong in the second case.

    Args:
        key_mask: (B, Tk) bool, False where a key is padding; None where all are real (Vaswani et al. 2017, 3.2.3).
        causal: hide the keys that come after a query.
        q_len: Tq.
        k_len: Tk.
        device: where the mask is made if there is no key_mask to tell.

    Returns:
        A bool tensor that broadcasts to (B, 1, Tq, Tk), or None where every query sees every key.

    Raises:
        ValueError: key_mask is not a bool tensor of (B, Tk).
    """
    if key_mask is not None:
        if key_mask.dtype != torch.bool or key_mask.dim() != 2 or key_mask.shape[1] != k_len:
            raise ValueError(
                f"key_mask must be bool of shape (B, {k_len}), True = may attend; "
                f"got {key_mask.dtype} {tuple(key_mask.shape)}"
            )
        key_mask = key_mask[:, None, None, :]
        device = key_mask.device
    if not causal or (q_len == 1 and k_len >= 1):  # a single query, being the last, sees every key
        return key_mask
    behind = distance(q_len, k_len, device) >= 0
    return behind if key_mask is None else behind & key_mask


def distance(q_len: int, k_len: int, device: torch.device | None = None) -> Tensor:
    """How many positions each key lies behind each query, (Tq, Tk); negative for keys that come later."""
    queries = torch.arange(k_len - q_len, k_len, device=device)
    return queries[:, None] - torch.arange(k_len, device=device)


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """The key mask of a batch of token ids: (B, T) ids -> (B, T) bool, False at padding."""
    return ids != pad_id
