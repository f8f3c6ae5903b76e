"""Causal attention proper, and the kernel that serves each case.

Plain causal attention calls `scaled_dot_product_attention`. A sliding window or sinks need what that does not
offer (a window without a mask, the log-sum-exp), so they call the flash kernels beneath it. For a single token
the kernels read its position from device memory, so that one recording serves all positions below `n_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_FLASH_MAX_HEAD_DIM = 256
_FLASH_HEAD_DIM_MULTIPLE = 8
_FEWEST_ROWS = 256


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of the last n positions: q (n, heads, dim) over keys and values (total, kv_heads, dim).

    With `window` a position sees itself and the window - 1 before it; `sinks` (heads,) are logits that join
    the softmax's denominator; `scale` defaults to dim ** -0.5. Returns (n, heads, dim).
    """
    keys, values = (visible(t, q.shape[0], window) for t in (keys, values))
    band = window if window is not None and keys.shape[0] > window else None
    if sinks is None and band is None:
        return _causal(q, keys, values, scale)
    out, log_sum_exp = _with_log_sum_exp(q, keys, values, band, scale)
    return out if sinks is None else joined_sinks(out, log_sum_exp, sinks)


def attend_in_chunks(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chunk: int) -> torch.Tensor:
    """The same where a position sees only the positions of its own chunk, of which position 0 begins the first."""
    total = keys.shape[0]
    begin = total - q.shape[0]
    pieces = []
    for start in range(begin // chunk * chunk, total, chunk):
        end = min(start + chunk, total)
        rows = q[max(start - begin, 0) : end - begin]
        pieces.append(attend(rows, keys[start:end], values[start:end]))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def joined_sinks(out: torch.Tensor, log_sum_exp: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """The output (n, heads, dim) with `sinks` (heads,) in the denominator too; log_sum_exp (n, heads).

    A key of logit `sink` and value 0 scales the rest by 1 - its weight, which is sigmoid(lse - sink).
    """
    return out * torch.sigmoid(log_sum_exp - sinks.float()).unsqueeze(-1).to(out.dtype)


def visible(past: torch.Tensor, n: int, window: int | None) -> torch.Tensor:
    """Of all rows (total, ...) those that any of the last n positions sees."""
    total = past.shape[0]
    return past if window is None else past[max(0, total - n - window + 1) :]


def _causal(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None) -> torch.Tensor:
    n, total = q.shape[0], keys.shape[0]
    mask = None
    if 1 < n < total:
        mask = _lower_right(n, total) if q.is_cuda else band_mask(n, total, None, q)
    out = F.scaled_dot_product_attention(
        _heads_first(q),
        _heads_first(keys),
        _heads_first(values),
        attn_mask=mask,
        is_causal=1 < n == total,
        scale=scale,
        enable_gqa=q.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)


def _lower_right(n: int, total: int) -> torch.Tensor:
    """What tells torch's attention that the last n of `total` positions ask, without a mask in memory."""
    from torch.nn.attention.bias import causal_lower_right  # brings torch._dynamo: as slow to import as torch itself

    bias: torch.Tensor = causal_lower_right(n, total)
    return bias


def _with_log_sum_exp(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output (n, heads, dim), and the float32 log-sum-exp of each row's logits (n, heads)."""
    if q.is_cuda and flash_serves(q):
        return _flash_cuda(q, keys, values, window, scale)
    if q.device.type == "cpu":
        return _flash_cpu(q, keys, values, window, scale)
    return plain_attention(q, keys, values, window, scale)


def flash_serves(q: torch.Tensor) -> bool:
    """Whether CUDA's flash kernels take such queries."""
    dim = q.shape[-1]
    return q.dtype in _FLASH_DTYPES and dim <= _FLASH_MAX_HEAD_DIM and dim % _FLASH_HEAD_DIM_MULTIPLE == 0


def _flash_cuda(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashAttention 2's own entry: causal to the lower right, and skips the blocks that a window hides."""
    out, log_sum_exp, *_ = torch.ops.aten._flash_attention_forward(
        *(t.unsqueeze(0) for t in (q, keys, values)),
        None,
        None,
        q.shape[0],
        keys.shape[0],
        0.0,
        True,
        False,
        scale=scale,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
    )
    return out[0], log_sum_exp[0].transpose(0, 1)


def _flash_cpu(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    out, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(_heads_first(t) for t in (q, keys, values)),
        attn_mask=band_mask(q.shape[0], keys.shape[0], window, q),
        scale=scale,
    )
    return out[0].transpose(0, 1), log_sum_exp[0].transpose(0, 1)


def plain_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by definition, in float32, every logit in memory: for any device, and the tests' oracle."""
    return plain_masked(q, keys, values, band_mask(q.shape[0], keys.shape[0], window, q.float()), scale)


def plain_masked(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same under any additive float32 mask (n, total)."""
    group = q.shape[1] // keys.shape[1]
    k, v = (t.float().repeat_interleave(group, dim=1) for t in (keys, values))
    logits = torch.einsum("nhd,thd->hnt", q.float(), k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    logits = logits + mask
    out = torch.einsum("hnt,thd->nhd", logits.softmax(-1), v)
    return out.to(q.dtype), logits.logsumexp(-1).transpose(0, 1)


def band_mask(n: int, total: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """Additive (n, total) for the last n of `total` positions: 0 where a key is seen, else minus infinity."""
    query = torch.arange(total - n, total, device=like.device).unsqueeze(1)
    key = torch.arange(total, device=like.device)
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    return torch.zeros(n, total, dtype=like.dtype, device=like.device).masked_fill_(hidden, float("-inf"))


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    """(positions, heads, dim) as the view (1, heads, positions, dim) that torch's attention takes."""
    return x.transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True, eq=False, slots=True)
class PositionOnDevice:
    """Where a ubatch's single token stands; filled before its layers run, at fixed addresses."""

    index: torch.Tensor  # (1,) int64: the position
    lengths: torch.Tensor  # (2,) int32: 0, and the number of positions seen, as flash kernels take them
    one: torch.Tensor  # (2,) int32: 0, 1: the same of the queries

    def set(self, position: int) -> None:
        """Launched with each ubatch."""
        self.index.fill_(position)
        self.lengths[1:].fill_(position + 1)

    def advance(self) -> None:
        """To the next position."""
        self.index.add_(1)
        self.lengths[1:].add_(1)


@dataclass(frozen=True, slots=True)
class OneToken:
    """One token at a position on the device, somewhere in the first `n_rows` rows of the cache."""

    position: PositionOnDevice
    n_rows: int


def position_on_device(device: torch.device) -> PositionOnDevice:
    """A position's buffers on a device."""
    index = torch.zeros(1, dtype=torch.int64, device=device)
    # not arange: on a simulated device that imports sympy, which takes half a second
    return PositionOnDevice(index, *(torch.tensor([0, 1], dtype=torch.int32, device=device) for _ in range(2)))


def rows_for(position: int, max_tokens: int) -> int:
    """Rows that a recording for this position is given: the next power of two, so that a context has few of them."""
    return min(max_tokens, max(_FEWEST_ROWS, 1 << position.bit_length()))


def attend_one(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    at: OneToken,
    window: int | None,
    sinks: torch.Tensor | None,
    scale: float | None = None,
) -> torch.Tensor:
    """What `attend` gives for q (1, heads, dim) and the rows up to its position, of keys and values (n_rows, …)."""
    if q.is_cuda and flash_serves(q):
        out, log_sum_exp = _flash_cuda_one(q, keys, values, at.position, window, scale)
    else:
        out, log_sum_exp = plain_masked(q, keys, values, _mask(at, window), scale)
    return out if sinks is None else joined_sinks(out, log_sum_exp, sinks)


def _flash_cuda_one(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    at: PositionOnDevice,
    window: int | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashAttention 2 for sequences of several lengths: the one sequence's length lies on the device."""
    out, log_sum_exp, *_ = torch.ops.aten._flash_attention_forward(
        q,
        keys,
        values,
        at.one,
        at.lengths,
        1,
        keys.shape[0],
        0.0,
        True,
        False,
        scale=scale,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
    )
    return out, log_sum_exp.transpose(0, 1)


def _mask(at: OneToken, window: int | None) -> torch.Tensor:
    """Additive (1, n_rows), float32: minus infinity for rows after the position or before its window."""
    index = at.position.index
    row = torch.arange(at.n_rows, device=index.device)
    hidden = row > index
    if window is not None:
        hidden |= row <= index - window
    return torch.zeros(1, at.n_rows, device=index.device).masked_fill_(hidden, float("-inf"))
