"""What a model learns: numbers in words, or the user's own text."""
