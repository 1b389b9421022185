"""The model unicloze-small-en: `unicloze fill --model unicloze-small-en`."""
