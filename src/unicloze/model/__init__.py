"""The neural network: attention, backbone, heads and losses."""
