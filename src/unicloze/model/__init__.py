"""Batch to hidden states to losses: attention, backbone, heads, and the model a recipe describes."""
