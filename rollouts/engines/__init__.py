"""What samples? transformers, vLLM, or a vLLM server, behind one protocol."""
