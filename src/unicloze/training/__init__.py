"""Training: the loop for all objectives, optimisers, checkpoints, the ledger, and resumable runs."""
