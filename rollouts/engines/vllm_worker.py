"""What runs inside vLLM's workers: renewing the output head that vLLM computes with on a CPU.

On a CPU vLLM multiplies with packed copies of the weights. `reload_weights` packs those that it is given, and a head
that shares the embedding's weights is given none. The engine in the training process calls `pack_output_heads` itself;
a server needs `--worker-extension-cls` with WorkerExtension, whose methods become methods of its workers.
"""

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner


class WorkerExtension:
    """Mixed into the workers of a vLLM server that computes on a CPU."""

    model_runner: "CPUModelRunner"

    def renew_output_heads(self) -> None:
        """Pack the output heads anew after `reload_weights`."""
        pack_output_heads(self.model_runner.get_model())


def pack_output_heads(model: nn.Module) -> None:
    """Pack the weights of every output head as they are now."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)
