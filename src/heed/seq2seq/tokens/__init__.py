"""Text as tokens: tokenizers, vocabularies, and models of SentencePiece."""
