"""Telling whether the weights under an adapter are still those that it was trained on."""

import hashlib

import torch
from torch import nn

SAMPLED = 65_536
"""Values of each tensor that count: a swapped model differs in nearly all; 8 billion are too many to read."""


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the name, shape and up to SAMPLED values, at even distances, of every parameter.

    Values count as bfloat16, so that the same weights loaded in float32 have the same fingerprint.
    """
    hasher = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        values = tensor.detach().flatten()
        values = values[:: max(1, values.numel() // SAMPLED)].to(torch.bfloat16).contiguous().cpu()
        hasher.update(f"{name} {tuple(tensor.shape)}\n".encode())
        hasher.update(values.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()
