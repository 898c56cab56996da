"""How does a run get onto a cluster? Job scripts over one library, and the command that writes and submits them."""
