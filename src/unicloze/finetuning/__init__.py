"""Fine-tuning: trains a model on a task with labelled records, predicts and scores."""
