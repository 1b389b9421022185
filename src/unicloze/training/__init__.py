"""One loop for every objective: optimisers, checkpoints, the ledger, and runs that can be killed at any moment."""
