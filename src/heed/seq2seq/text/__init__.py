"""Text before it is tokens: corpora, files of lines, their checks and order, and how texts are compared."""
