"""The bytes of tensors that are alive, counted as PyTorch makes and frees them; a CPU has no counter of its own."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`peak` is the largest number of bytes that the tensors of the block and `tensors` held at once."""

    def __init__(self, tensors=()):
        super().__init__()
        self.alive, self.now, self.peak = {}, 0, 0
        for tensor in tensors:
            self._take(tensor)

    def _take(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.alive:
            self.alive[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, key):
        self.now -= self.alive.pop(key, 0)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._take(leaf)
        return result
