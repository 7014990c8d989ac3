"""What fits this machine: memory for the KV cache and sequences, a compiler. Knows flags and the machine, no server."""
