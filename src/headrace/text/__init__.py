"""Turns texts into tokens with `tokenizers`, tiktoken or sentencepiece."""

from headrace.text.tokenize import Tokenize as Tokenize
