"""Imported last by a fork server: what it has imported is then no garbage that its children look through, whenever they
collect (half a second each time), and whose pages they would copy for that. And what transformers compiles at the first
model that a process loads (names of weights, a third of a second) is compiled for all of them."""

import gc

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("llama")
gc.collect()
gc.freeze()
