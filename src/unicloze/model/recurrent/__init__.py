"""The recurrent family: LSTMs that read the runs of slots which visibility gives them."""
