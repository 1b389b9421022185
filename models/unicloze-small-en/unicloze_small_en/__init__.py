"""The model unicloze-small-en for unicloze."""
