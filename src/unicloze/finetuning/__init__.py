"""Fine-tuning: a trained model and labelled records to a model of a task, its predictions and its scores."""
