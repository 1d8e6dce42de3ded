"""One small parser per model family, from the fields of a Hugging Face config to a ModelSpec."""
