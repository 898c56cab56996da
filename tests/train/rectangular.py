"""Log-probabilities of padded rows, as tests write trees down: prompts on the left, completions on the right."""

from typing import Any

import numpy as np
import torch
from querylect.train.packing import token_logps


def packed_logps(model, input_ids, attention_mask, target_mask, temperature, *arguments: Any, **how: Any):
    """`token_logps` of the tokens in `target_mask` (rows, completion), as (rows, completion) with 0 elsewhere."""
    offset = input_ids.shape[1] - target_mask.shape[1]
    attended = attention_mask.bool()
    sequences = [row[keep].numpy() for row, keep in zip(input_ids, attended, strict=True)]
    wanted = torch.nn.functional.pad(target_mask, (offset, 0))
    targets = [np.flatnonzero(mask[keep].numpy()) for mask, keep in zip(wanted, attended, strict=True)]
    values, entropies, tokens = token_logps(model, sequences, targets, temperature, *arguments, **how)

    def spread(flat):
        return torch.zeros(target_mask.shape).masked_scatter(target_mask, flat)

    return spread(values), None if entropies is None else spread(entropies), tokens
