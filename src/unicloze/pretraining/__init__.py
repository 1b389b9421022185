"""Pre-training: trains a recipe on a corpus, chooses a recipe for a corpus and a budget, and plans a run."""
